/*
 * What gaccctl top shows, pure: what is known of a job becomes a screen of any size. Which parts there are, and how
 * large, follows from the size; what has no room is cut, what matters most stays.
 */
#ifndef GACC_CTL_VIEW_H
#define GACC_CTL_VIEW_H

#include <stdint.h>

#include "daemon/ctl/screen.h"
#include "proto/gacc/v1/control.pb-c.h"

/* The last attempts, oldest first. */
#define VIEW_POINTS_MAX 2000
struct view_point {
    uint64_t step;
    double loss;  /* NaN: none */
    double scale; /* 0: without a scaler */
    Gacc__V1__Verdict verdict;
};

/* What was told beside the steps, oldest first. */
#define VIEW_EVENTS_MAX 64
struct view_event {
    uint64_t step;
    enum style style;
    char text[240];
};

struct view {
    const Gacc__V1__Status *status; /* borrowed; NULL: not known yet */
    double unix_seconds;            /* now */
    struct view_point points[VIEW_POINTS_MAX];
    int point_count;
    struct view_event events[VIEW_EVENTS_MAX];
    int event_count;
    char message[300]; /* at the foot, instead of the keys; empty: none */
    enum style message_style;
};

/* A step that is not behind the last one is left out, as it was seen. */
void view_add_point(struct view *view, const struct view_point *point);
void view_add_event(struct view *view, uint64_t step, enum style style, const char *text);
void view_draw(const struct view *view, struct screen *screen);

#endif
