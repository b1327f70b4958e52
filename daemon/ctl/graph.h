/* Graphs in cells: lines of braille dots, bars of eighths; with stars and hashes on an ASCII screen. Pure. */
#ifndef GACC_CTL_GRAPH_H
#define GACC_CTL_GRAPH_H

#include "daemon/ctl/screen.h"

struct graph_area {
    int row, column, rows, columns;
};

/* A line through `values` (NaN: a gap), oldest first, from `low` at the bottom to `high` at the top; what has no room
 * of its own is averaged. */
void graph_line(struct screen *screen, struct graph_area area, const double *values, int count, double low,
                double high);
/* `part` of `columns`, from 0 to 1. Returns the column behind the bar's room. */
int graph_bar(struct screen *screen, int row, int column, int columns, enum style style, double part);

#endif
