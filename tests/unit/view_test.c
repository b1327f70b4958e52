/* What gaccctl top shows of a job, at several sizes (tests/unit/top holds the screens. GACC_WRITE_REFERENCE=1 writes
 * them anew. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/ctl/graph.h"
#include "daemon/ctl/view.h"

/* ---- a job ---- */

#define RANKS 8

struct job {
    Gacc__V1__Status status;
    Gacc__V1__RankStatus ranks[RANKS], *rank_pointers[RANKS];
    Gacc__V1__LastStep last, *last_pointer;
    struct view view;
    char *request;
};

/* In fp16, at step 1234 of 5000, a checkpoint is asked for; rank 5 is slow and rank 6 silent. */
static void begin(struct job *job)
{
    static char request[] = "checkpoint";
    memset(job, 0, sizeof *job);
    gacc__v1__status__init(&job->status);
    job->status.job = (char *)"抄写 shakespeare";
    job->status.output = (char *)"runs/shakespeare";
    job->status.phase = (char *)"training";
    job->status.step = 1240;
    job->status.optimizer_steps = 1234;
    job->status.skipped_steps = 6;
    job->status.total_steps = 5000;
    job->status.loss = 1.2345;
    job->status.lr = 3e-4;
    job->status.has_scaler = true;
    job->status.loss_scale = 32768;
    job->status.growth_tracker = 12;
    job->status.tokens_per_second = 102400;
    job->status.steps_per_second = 12.5;
    job->status.eta_seconds = 301;
    job->status.has_validation = true;
    job->status.validation_loss = 1.5;
    job->status.validation_optimizer_steps = 1200;
    job->status.effective_batch = 64;
    job->status.micro_batch = 4;
    job->status.epoch = 3;
    job->status.started_unix_seconds = 1000;
    job->status.checkpoint = (char *)"step-00001000";
    job->status.checkpoint_unix_seconds = 4590;
    job->request = request;
    job->status.requests = &job->request;
    job->status.n_requests = 1;
    for (uint32_t i = 0; i < RANKS; i++) {
        job->rank_pointers[i] = &job->ranks[i];
        gacc__v1__rank_status__init(&job->ranks[i]);
        job->ranks[i].rank = i;
        job->ranks[i].host = (char *)"node-0123456789";
        job->ranks[i].state = i == 5 ? GACC__V1__STATE__STATE_MICRO_BACKWARD : GACC__V1__STATE__STATE_UNSCALE;
        job->ranks[i].micro_batch = i == 5 ? 2 : 3;
        job->ranks[i].seconds_in_state = 0.1 * i;
        job->ranks[i].step_seconds = i == 5 ? 0.08 : 0.04 + 0.001 * i;
    }
    job->ranks[6].seconds_since_heard = 4.5;
    job->status.ranks = job->rank_pointers;
    job->status.n_ranks = RANKS;
    gacc__v1__last_step__init(&job->last);
    job->last.grad_norm = 0.75;
    job->last_pointer = &job->last;
    job->status.last = &job->last_pointer;
    job->status.n_last = 1;
    job->view.status = &job->status;
    job->view.unix_seconds = 4600;
    for (uint64_t step = 1; step <= 1240; step++) {
        const struct view_point point = {step, step == 700 ? (double)NAN : 1 + 3 * exp(-(double)step / 200),
                                         step < 400   ? 65536
                                         : step < 900 ? 131072
                                                      : 32768,
                                         GACC__V1__VERDICT__VERDICT_APPLY};
        view_add_point(&job->view, &point);
    }
    view_add_event(&job->view, 900, STYLE_WARN, "skip: overflow in h.1.mlp.c_fc.weight");
    view_add_event(&job->view, 1006, STYLE_GOOD, "step-00001000 is complete, 12.3 MB");
    view_add_event(&job->view, 1206, STYLE_PLAIN, "validation 1.5");
}

/* ---- screens ---- */

static char *text_of(const struct view *view, int columns, int rows, bool is_ascii)
{
    struct screen screen;
    char *text = NULL;
    size_t length;
    assert_int_equal(screen_open(&screen, columns, rows, is_ascii), 0);
    view_draw(view, &screen);
    FILE *stream = open_memstream(&text, &length);
    for (int row = 0; row < rows; row++) {
        screen_write_row(&screen, row, stream);
        fputc('\n', stream);
    }
    fclose(stream);
    screen_close(&screen);
    return text;
}

static void expect(const struct view *view, int columns, int rows, bool is_ascii, const char *name)
{
    char path[512], wanted[65536] = "";
    char *text = text_of(view, columns, rows, is_ascii);
    snprintf(path, sizeof path, "%s/%s.txt", TOP_SCREENS, name);
    FILE *file = fopen(path, getenv("GACC_WRITE_REFERENCE") ? "w+" : "r");
    assert_non_null(file);
    if (getenv("GACC_WRITE_REFERENCE")) {
        fputs(text, file);
        rewind(file);
    }
    wanted[fread(wanted, 1, sizeof wanted - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, wanted);
    free(text);
}

static void a_job_at_several_sizes(void **state)
{
    (void)state;
    static struct job job;
    begin(&job);
    expect(&job.view, 80, 24, false, "80x24");
    expect(&job.view, 80, 24, true, "80x24-ascii");
    expect(&job.view, 40, 10, false, "40x10");
    expect(&job.view, 200, 60, false, "200x60");
    expect(&job.view, 10, 3, false, "10x3");
}

static void a_job_that_has_just_begun(void **state)
{
    (void)state;
    static struct job job;
    begin(&job);
    job.status.has_scaler = job.status.has_validation = false;
    job.status.step = job.status.optimizer_steps = job.status.n_requests = job.status.n_last = 0;
    job.status.loss = job.status.eta_seconds = (double)NAN;
    job.status.checkpoint = (char *)"";
    job.status.n_ranks = 2;
    job.view.point_count = job.view.event_count = 0;
    for (int i = 0; i < RANKS; i++) job.ranks[i].step_seconds = 0;
    expect(&job.view, 80, 24, false, "80x24-begun");
}

/* Every size at all, and a job of many ranks: nothing is written outside of the screen (the sanitizers' task), no row
 * is too long. */
static void any_size_will_do(void **state)
{
    (void)state;
    static struct job job;
    begin(&job);
    snprintf(job.view.message, sizeof job.view.message, "%s", "the connection is lost: trying again  (q quits)");
    for (int columns = 1; columns <= 130; columns += columns < 30 ? 1 : 7)
        for (int rows = 1; rows <= 70; rows += rows < 30 ? 1 : 9) {
            char *text = text_of(&job.view, columns, rows, true);
            int count = 0;
            for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1, count++)
                assert_true(end - at <= columns);
            assert_int_equal(count, rows);
            free(text);
        }
}

static void a_text_of_the_job_cannot_steer_the_terminal(void **state)
{
    (void)state;
    static struct job job;
    begin(&job);
    job.status.job = (char *)"a\033[31mb\xc2\x9b"
                             "c\xff"
                             "d";
    char *text = text_of(&job.view, 80, 24, false);
    assert_non_null(strstr(text, "a?[31mb?c?d"));
    free(text);
}

/* ---- what the terminal is sent ---- */

static char *painted(const struct screen *before, const struct screen *after, bool has_colours)
{
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    screen_paint(before, after, has_colours, stream);
    fclose(stream);
    return text;
}

static void only_rows_that_changed_are_sent(void **state)
{
    (void)state;
    struct screen before, after;
    screen_open(&before, 20, 3, false);
    screen_open(&after, 20, 3, false);
    for (int row = 0; row < 3; row++) {
        screen_print(&before, row, 0, STYLE_PLAIN, "row %d", row);
        screen_print(&after, row, 0, STYLE_PLAIN, "row %d", row);
    }
    char *text = painted(&before, &after, true);
    assert_string_equal(text, "");
    free(text);
    screen_put(&after, 1, 4, -1, STYLE_BAD, "one");
    text = painted(&before, &after, true);
    assert_string_equal(text, "\033[2;1H\033[0mrow \033[0;1;31mone\033[0m\033[K");
    free(text);
    text = painted(&before, &after, false); /* without a colour, and yet to be told apart */
    assert_string_equal(text, "\033[2;1H\033[0mrow \033[0;7mone\033[0m\033[K");
    free(text);
    screen_close(&before);
    screen_open(&before, 21, 3, false); /* another size: all anew */
    text = painted(&before, &after, true);
    assert_memory_equal(text, "\033[0m\033[2J\033[1;1H\033[0mrow 0", 20);
    free(text);
    screen_close(&before);
    screen_close(&after);
}

static void monochrome_has_no_colours(void **state)
{
    (void)state;
    static struct job job;
    struct screen screen;
    begin(&job);
    screen_open(&screen, 80, 24, false);
    view_draw(&job.view, &screen);
    char *mono = painted(NULL, &screen, false), *colours = painted(NULL, &screen, true);
    assert_null(strstr(mono, "\033[0;3"));
    assert_null(strstr(mono, "\033[0;9"));
    assert_null(strstr(mono, ";31m"));
    assert_non_null(strstr(colours, "\033[0;36m"));
    free(mono);
    free(colours);
    screen_close(&screen);
}

static void a_wide_character_takes_two_cells_or_none(void **state)
{
    (void)state;
    struct screen screen;
    screen_open(&screen, 5, 1, false);
    assert_int_equal(screen_put(&screen, 0, 0, -1, STYLE_PLAIN, "抄写抄"), 4);
    assert_int_equal(screen.cells[1].glyph, 0);
    assert_int_equal(screen.cells[4].glyph, ' ');
    screen_close(&screen);
}

static void bars_are_filled_by_eighths(void **state)
{
    (void)state;
    static const struct {
        double part;
        uint32_t cells[2];
    } bars[] = {{0, {' ', ' '}},       {1 / 16.0, {0x258f, ' '}}, {0.5, {0x2588, ' '}}, {15 / 16.0, {0x2588, 0x2589}},
                {1, {0x2588, 0x2588}}, {7, {0x2588, 0x2588}},     {-1, {' ', ' '}},     {(double)NAN, {' ', ' '}}};
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++) {
        struct screen screen;
        screen_open(&screen, 2, 1, false);
        assert_int_equal(graph_bar(&screen, 0, 0, 2, STYLE_BAR, bars[i].part), 2);
        for (int k = 0; k < 2; k++) assert_int_equal(screen.cells[k].glyph, bars[i].cells[k]);
        screen_close(&screen);
    }
}

static void points_are_seen_once_and_the_oldest_go(void **state)
{
    (void)state;
    static struct view view;
    for (uint64_t step = 1; step <= VIEW_POINTS_MAX + 10; step++) {
        const struct view_point point = {.step = step}, again = {.step = step / 2};
        view_add_point(&view, &point);
        view_add_point(&view, &again);
    }
    assert_int_equal(view.point_count, VIEW_POINTS_MAX);
    assert_int_equal(view.points[0].step, 11);
    for (uint64_t i = 0; i < VIEW_EVENTS_MAX + 3; i++) view_add_event(&view, i, STYLE_PLAIN, "x");
    assert_int_equal(view.event_count, VIEW_EVENTS_MAX);
    assert_int_equal(view.events[0].step, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_at_several_sizes),
        cmocka_unit_test(a_job_that_has_just_begun),
        cmocka_unit_test(any_size_will_do),
        cmocka_unit_test(a_text_of_the_job_cannot_steer_the_terminal),
        cmocka_unit_test(only_rows_that_changed_are_sent),
        cmocka_unit_test(monochrome_has_no_colours),
        cmocka_unit_test(a_wide_character_takes_two_cells_or_none),
        cmocka_unit_test(bars_are_filled_by_eighths),
        cmocka_unit_test(points_are_seen_once_and_the_oldest_go),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
