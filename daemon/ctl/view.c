#include "daemon/ctl/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/graph.h"
#include "daemon/ctl/show.h"

#define SILENT_SECONDS 2.0

void view_add_point(struct view *view, const struct view_point *point)
{
    if (view->point_count && point->step <= view->points[view->point_count - 1].step) return;
    if (view->point_count == VIEW_POINTS_MAX)
        memmove(view->points, view->points + 1, sizeof *view->points * (size_t)--view->point_count);
    view->points[view->point_count++] = *point;
}

void view_add_event(struct view *view, uint64_t step, enum style style, const char *text)
{
    if (view->event_count == VIEW_EVENTS_MAX)
        memmove(view->events, view->events + 1, sizeof *view->events * (size_t)--view->event_count);
    struct view_event *event = &view->events[view->event_count++];
    *event = (struct view_event){.step = step, .style = style};
    snprintf(event->text, sizeof event->text, "%s", text);
}

/* ---- the head ---- */

static enum style style_of_phase(const char *phase)
{
    if (!strcmp(phase, "training")) return STYLE_GOOD;
    return strcmp(phase, "failing") ? STYLE_WARN : STYLE_BAD;
}

static void draw_title(const struct view *view, struct screen *screen, int row)
{
    const Gacc__V1__Status *status = view->status;
    char up[32];
    int column = screen_put(screen, row, 0, -1, style_of_phase(status->phase), status->phase);
    column = screen_put(screen, row, column + 2, -1, STYLE_BOLD, status->job);
    column = screen_put(screen, row, column, -1, STYLE_PLAIN, " in ");
    screen_put(screen, row, column, -1, STYLE_PLAIN, status->output);
    const char *duration = show_duration(view->unix_seconds - status->started_unix_seconds, up);
    const int right = screen->columns - (int)strlen(duration) - 3;
    if (right > column + (int)strlen(status->output) + 2)
        screen_print(screen, row, right, STYLE_DIM, "up %s", duration);
}

static void draw_progress(const struct view *view, struct screen *screen, int row)
{
    const Gacc__V1__Status *status = view->status;
    char left[32], behind[64];
    const char *word = screen->columns < 20 ? "" : "step ";
    const double part = status->total_steps ? (double)status->optimizer_steps / (double)status->total_steps : 0;
    int column = screen_print(screen, row, 0, STYLE_PLAIN, "%s%llu/%llu ", word,
                              (unsigned long long)status->optimizer_steps, (unsigned long long)status->total_steps);
    snprintf(behind, sizeof behind, " %3.0f %%  %s left", floor(100 * part), show_duration(status->eta_seconds, left));
    const int room = screen->columns - column - (int)strlen(behind);
    if (room >= 8) {
        screen_put(screen, row, column, 1, STYLE_DIM, "[");
        graph_bar(screen, row, column + 1, room - 2, STYLE_BAR, part);
        column = screen_put(screen, row, column + room - 1, 1, STYLE_DIM, "]");
    }
    screen_put(screen, row, column, -1, STYLE_PLAIN, behind);
}

static void draw_loss(const struct view *view, struct screen *screen, int row)
{
    const Gacc__V1__Status *status = view->status;
    int column = isfinite(status->loss)
                     ? screen_print(screen, row, 0, STYLE_BOLD, "loss %.5g", status->loss)
                     : screen_print(screen, row, 0, STYLE_WARN, "loss %s", status->step ? "not finite" : "-");
    column = screen_print(screen, row, column + 2, STYLE_PLAIN, "lr %.4g", status->lr);
    if (status->has_scaler)
        column = screen_print(screen, row, column + 2, STYLE_PLAIN, "scale %g (%u good)", status->loss_scale,
                              status->growth_tracker);
    if (status->n_last && isfinite(status->last[status->n_last - 1]->grad_norm))
        screen_print(screen, row, column + 2, STYLE_PLAIN, "grad norm %.4g",
                     status->last[status->n_last - 1]->grad_norm);
}

static void draw_pace(const struct view *view, struct screen *screen, int row)
{
    const Gacc__V1__Status *status = view->status;
    int column = screen_print(screen, row, 0, STYLE_PLAIN, "%.3g steps/s  %.0f tokens/s  ", status->steps_per_second,
                              status->tokens_per_second);
    column = screen_print(screen, row, column, status->skipped_steps ? STYLE_WARN : STYLE_PLAIN, "skipped %llu",
                          (unsigned long long)status->skipped_steps);
    if (status->empty_steps)
        column =
            screen_print(screen, row, column + 2, STYLE_WARN, "empty %llu", (unsigned long long)status->empty_steps);
    screen_print(screen, row, column + 2, STYLE_PLAIN, "batch %u by %u  epoch %llu", status->effective_batch,
                 status->micro_batch, (unsigned long long)status->epoch);
}

static void draw_checkpoint(const struct view *view, struct screen *screen, int row)
{
    const Gacc__V1__Status *status = view->status;
    char age[32];
    int column = 0;
    if (status->checkpoint[0])
        column = screen_print(screen, row, 0, STYLE_PLAIN, "%s, %s old", status->checkpoint,
                              show_duration(view->unix_seconds - status->checkpoint_unix_seconds, age));
    else
        column = screen_put(screen, row, 0, -1, STYLE_PLAIN, "no checkpoint yet");
    if (status->checkpoint_under_way) column = screen_put(screen, row, column, -1, STYLE_GOOD, "; saving");
    if (status->has_validation)
        column = screen_print(screen, row, column + 2, STYLE_PLAIN, "validation %.5g at step %llu",
                              status->validation_loss, (unsigned long long)status->validation_optimizer_steps);
    for (size_t i = 0; i < status->n_requests; i++)
        column = screen_print(screen, row, column, STYLE_WARN, "%s%s", i ? ", " : "  asked for: ", status->requests[i]);
}

/* In the order in which they stay when there is little room. */
static void (*const head[])(const struct view *, struct screen *, int row) = {draw_title, draw_progress, draw_loss,
                                                                              draw_pace, draw_checkpoint};
#define HEAD_ROWS ((int)(sizeof head / sizeof *head))

/* ---- graphs ---- */

struct range {
    double low, high;
    int count;
};

static struct range range_of(const double *values, int count)
{
    struct range range = {(double)INFINITY, -(double)INFINITY, 0};
    for (int i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        range.low = fmin(range.low, values[i]);
        range.high = fmax(range.high, values[i]);
        range.count++;
    }
    return range;
}

/* `is_log`: values are the binary logarithms of what the axis names. The first row says what it is, the axis stands on
 * the left. */
static void draw_graph(const struct view *view, struct screen *screen, int row, int rows, const char *name,
                       const double *values, bool is_log)
{
    enum { AXIS = 9 };
    const struct range range = range_of(values, view->point_count);
    const int columns = screen->columns - AXIS;
    if (view->point_count)
        screen_print(screen, row, 0, STYLE_DIM, "%s of the last %d attempts", name, view->point_count);
    if (!range.count || rows < 2 || columns < 4) return;
    const int digits = is_log ? 6 : 4;
    const double high = is_log ? exp2(range.high) : range.high, low = is_log ? exp2(range.low) : range.low;
    screen_print(screen, row + 1, 0, STYLE_DIM, "%*.*g", AXIS - 1, digits, high);
    if (rows > 2 && low < high) screen_print(screen, row + rows - 1, 0, STYLE_DIM, "%*.*g", AXIS - 1, digits, low);
    const struct graph_area area = {row + 1, AXIS, rows - 1, columns};
    graph_line(screen, area, values, view->point_count, range.low, range.high);
}

static void draw_graphs(const struct view *view, struct screen *screen, int row, int rows)
{
    double values[VIEW_POINTS_MAX] = {0};
    const int scale_rows = view->status->has_scaler && rows >= 6 ? (rows >= 12 ? rows / 4 : 2) : 0;
    for (int i = 0; i < view->point_count; i++) values[i] = view->points[i].loss;
    draw_graph(view, screen, row, rows - scale_rows, "loss", values, false);
    if (!scale_rows) return;
    for (int i = 0; i < view->point_count; i++)
        values[i] = view->points[i].scale > 0 ? log2(view->points[i].scale) : (double)NAN;
    draw_graph(view, screen, row + rows - scale_rows, scale_rows, "loss scale", values, true);
}

/* ---- ranks ---- */

static bool is_silent(const Gacc__V1__RankStatus *rank)
{
    return rank->seconds_since_heard > SILENT_SECONDS;
}

/* Silent ones before all. */
static int slowest_first(const void *a, const void *b)
{
    const Gacc__V1__RankStatus *left = *(Gacc__V1__RankStatus *const *)a, *right = *(Gacc__V1__RankStatus *const *)b;
    if (is_silent(left) != is_silent(right)) return is_silent(right) ? 1 : -1;
    if (left->step_seconds != right->step_seconds) return left->step_seconds < right->step_seconds ? 1 : -1;
    return left->rank < right->rank ? -1 : left->rank > right->rank;
}

/* What a rank's row has besides its number, its state and its work. */
struct rank_columns {
    int host, state;
    bool has_times; /* how long it has been in its state, and which micro-batch this is */
};

static struct rank_columns rank_columns_of(int columns)
{
    if (columns >= 100) return (struct rank_columns){24, 14, true};
    if (columns >= 60) return (struct rank_columns){10, 14, true};
    return (struct rank_columns){0, 14, false};
}

static void draw_rank(struct screen *screen, int row, const Gacc__V1__RankStatus *rank, double longest)
{
    const struct rank_columns columns = rank_columns_of(screen->columns);
    const bool silent = is_silent(rank);
    const enum style style = silent ? STYLE_BAD : STYLE_PLAIN;
    int column = screen_print(screen, row, 0, STYLE_PLAIN, "%4u ", rank->rank);
    if (columns.host) screen_put(screen, row, column, columns.host, STYLE_PLAIN, rank->host);
    column += columns.host ? columns.host + 1 : 0;
    screen_put(screen, row, column, columns.state, style, silent ? "silent" : show_state(rank->state));
    column += columns.state + 1;
    if (columns.has_times) {
        const double since = silent ? rank->seconds_since_heard : rank->seconds_in_state;
        screen_print(screen, row, column, style, "%6.1f s %4u", since, rank->micro_batch);
        column += 14;
    }
    if (rank->step_seconds > 0) screen_print(screen, row, column, STYLE_PLAIN, "%7.3g s", rank->step_seconds);
    column += 10;
    if (screen->columns - column >= 4)
        graph_bar(screen, row, column, screen->columns - column, STYLE_BAR,
                  longest > 0 ? rank->step_seconds / longest : 0);
}

static void draw_rank_names(struct screen *screen, int row)
{
    const struct rank_columns columns = rank_columns_of(screen->columns);
    screen_print(screen, row, 0, STYLE_DIM, "rank %-*s%-*s%s  own work", columns.host ? columns.host + 1 : 0,
                 columns.host ? "host" : "", columns.state + 1, "state", columns.has_times ? "     for  m-b " : "");
}

/* A row names the columns, where there is one to spare. Where not all ranks have room the slowest come first, and the
 * last row tells of the others. */
static void draw_ranks(const struct view *view, struct screen *screen, int row, int rows)
{
    const Gacc__V1__Status *status = view->status;
    const int count = (int)status->n_ranks;
    if (!count) return;
    const bool is_named = rows > count || rows >= 5;
    const int room = rows - is_named;
    const bool tells_rest = count > room && room >= 3;
    const int shown = count <= room ? count : room - tells_rest;
    Gacc__V1__RankStatus **sorted = malloc((size_t)count * sizeof *sorted);
    if (!sorted) return;
    double longest = 0;
    for (int i = 0; i < count; i++) {
        sorted[i] = status->ranks[i];
        longest = fmax(longest, sorted[i]->step_seconds);
    }
    if (shown < count) qsort(sorted, (size_t)count, sizeof *sorted, slowest_first);
    if (is_named) draw_rank_names(screen, row);
    for (int i = 0; i < shown; i++) draw_rank(screen, row + is_named + i, sorted[i], longest);
    if (tells_rest)
        screen_print(screen, row + rows - 1, 0, STYLE_DIM, "%d more ranks: %.3g to %.3g s", count - shown,
                     sorted[count - 1]->step_seconds, sorted[shown]->step_seconds);
    free(sorted);
}

/* ---- events, and the foot ---- */

static void draw_events(const struct view *view, struct screen *screen, int row, int rows)
{
    const int shown = view->event_count < rows ? view->event_count : rows;
    for (int i = 0; i < shown; i++) {
        const struct view_event *event = &view->events[view->event_count - shown + i];
        const int column = screen_print(screen, row + i, 0, STYLE_DIM, "%8llu ", (unsigned long long)event->step);
        screen_put(screen, row + i, column, -1, event->style, event->text);
    }
}

static void draw_foot(const struct view *view, struct screen *screen, int row)
{
    if (view->message[0]) {
        screen_put(screen, row, 0, -1, view->message_style, view->message);
        return;
    }
    static const char keys[] = " q quit  p pause  r resume  c checkpoint";
    for (int column = 0; column < screen->columns; column++) screen_put_glyph(screen, row, column, STYLE_TITLE, ' ');
    screen_put(screen, row, 0, -1, STYLE_TITLE, keys);
}

/* ---- the parts' room ---- */

struct layout {
    int head, graphs, ranks, events, foot; /* rows */
};

/* Ranks want a row each and one for their names, up to half of what head and foot leave; events a fifth of it; graphs
 * have the rest, or none where that is less than three rows. */
static struct layout layout_of(const struct view *view, int rows)
{
    struct layout layout = {.head = rows < 3 ? rows : rows < 8 ? 3 : rows < 12 ? 4 : HEAD_ROWS};
    layout.foot = rows >= 6 || (view->message[0] && rows > layout.head);
    const int body = rows - layout.head - layout.foot;
    if (body < 2) return layout;
    const int ranks = (int)(view->status->n_ranks < 1000 ? view->status->n_ranks : 1000) + 1;
    layout.ranks = ranks < body / 2 ? ranks : body / 2 < 2 ? 2 : body / 2;
    layout.events = body >= 10 ? (view->event_count < body / 5 ? view->event_count : body / 5) : 0;
    layout.graphs = body - layout.ranks - layout.events;
    if (layout.graphs >= 3) return layout;
    layout.graphs = 0;
    layout.ranks = ranks < body - layout.events ? ranks : body - layout.events;
    return layout;
}

void view_draw(const struct view *view, struct screen *screen)
{
    if (!view->status) {
        screen_put(screen, 0, 0, -1, view->message_style, view->message[0] ? view->message : "connecting");
        return;
    }
    const struct layout layout = layout_of(view, screen->rows);
    for (int i = 0; i < layout.head; i++) head[i](view, screen, i);
    int row = layout.head;
    if (layout.graphs) draw_graphs(view, screen, row, layout.graphs);
    row += layout.graphs;
    if (layout.ranks) draw_ranks(view, screen, row, layout.ranks);
    row += layout.ranks;
    if (layout.events) draw_events(view, screen, row, layout.events);
    if (layout.foot) draw_foot(view, screen, screen->rows - 1);
}
