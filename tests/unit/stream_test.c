/* A reader of WatchSteps whose connection is lost again and again sees every line once, in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/ctl/stream.h"

#define LINES 40

/* Lines of a log: a step's (its number), or others behind it (0). */
struct history {
    uint64_t steps[LINES];
};

/* What the coordinator answers: from the first line whose step is reached; others have that of the last step before
 * them, or what was asked for. */
struct answer {
    const struct history *history;
    uint64_t from, step;
    size_t next;
};

static bool next_line(struct answer *answer, size_t *line, uint64_t *step)
{
    for (; answer->next < LINES; answer->next++) {
        const uint64_t own = answer->history->steps[answer->next];
        if (own) answer->step = own;
        if (answer->step < answer->from) continue;
        *line = answer->next++;
        *step = answer->step;
        return true;
    }
    return false;
}

static void lines_are_seen_once_whatever_is_lost(void **state)
{
    (void)state;
    srand(1);
    for (int trial = 0; trial < 20000; trial++) {
        struct history history = {0};
        uint64_t step = (uint64_t)(rand() % 3);
        for (size_t i = 0; i < LINES; i++)
            if (rand() % 3) history.steps[i] = ++step;
        struct stream stream = {.from = 1};
        size_t seen = 0;
        while (seen < LINES) {
            const uint64_t from = stream_begin(&stream);
            struct answer answer = {.history = &history, .from = from, .step = from};
            /* The first connection brings a step at least; before that nobody knows where to go on. */
            int left = rand() % (2 * LINES) + (stream.last ? 0 : LINES);
            size_t line;
            while (left-- > 0 && next_line(&answer, &line, &step)) {
                if (!stream_take(&stream, step, history.steps[line] != 0)) continue;
                assert_int_equal(line, seen);
                seen++;
                if (stream.last && rand() % 8 == 0) break;
            }
        }
    }
}

static void lines_that_are_missing_end_the_repetition(void **state)
{
    (void)state;
    struct stream stream = {.from = 1};
    assert_int_equal(stream_begin(&stream), 1);
    assert_true(stream_take(&stream, 1, true));
    assert_true(stream_take(&stream, 1, false));
    assert_true(stream_take(&stream, 1, false));
    assert_int_equal(stream_begin(&stream), 1);
    assert_false(stream_take(&stream, 1, true));
    assert_true(stream_take(&stream, 2, true));
    assert_true(stream_take(&stream, 2, false));
}

static void a_job_that_begins_anew_is_seen_from_its_first_line(void **state)
{
    (void)state;
    struct stream stream = {.from = 0};
    assert_int_equal(stream_begin(&stream), 0);
    assert_true(stream_take(&stream, 900, true));
    stream_reset(&stream);
    assert_int_equal(stream_begin(&stream), 1);
    assert_true(stream_take(&stream, 1, false));
    assert_true(stream_take(&stream, 850, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_seen_once_whatever_is_lost),
        cmocka_unit_test(lines_that_are_missing_end_the_repetition),
        cmocka_unit_test(a_job_that_begins_anew_is_seen_from_its_first_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
