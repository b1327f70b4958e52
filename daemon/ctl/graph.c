#include "daemon/ctl/graph.h"

#include <math.h>

/* Dots of a braille cell, by row and column of its 4 × 2 (Unicode 15, U+2800). */
static const uint32_t dots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

/* The mean of those values that fall into a column of the graph; NaN: none does. */
static double value_of(const double *values, int count, int column, int columns)
{
    if (count <= columns) return column < count ? values[column] : (double)NAN;
    const int begin = (int)((int64_t)column * count / columns), end = (int)((int64_t)(column + 1) * count / columns);
    double sum = 0;
    int finite = 0;
    for (int i = begin; i < end; i++)
        if (isfinite(values[i])) sum += values[i], finite++;
    return finite ? sum / finite : (double)NAN;
}

/* From 0, the top, to rows − 1. */
static int row_of(double value, double low, double high, int rows)
{
    const double part = high > low ? (value - low) / (high - low) : 0.5;
    const double row = (1 - part) * (rows - 1);
    return row < 0 ? 0 : row > rows - 1 ? rows - 1 : (int)lround(row);
}

static void put_dot(struct screen *screen, const struct graph_area *area, int x, int y)
{
    const int row = area->row + y / 4, column = area->column + x / 2;
    if (row >= screen->rows || column >= screen->columns) return;
    const uint32_t before = screen->cells[row * screen->columns + column].glyph;
    const uint32_t base = before >= 0x2800 && before < 0x2900 ? before : 0x2800;
    screen_put_glyph(screen, row, column, STYLE_GRAPH, base | dots[y % 4][x % 2]);
}

void graph_line(struct screen *screen, struct graph_area area, const double *values, int count, double low, double high)
{
    const int across = screen->is_ascii ? 1 : 2, down = screen->is_ascii ? 1 : 4;
    int previous = -1;
    for (int x = 0; x < across * area.columns; x++) {
        const double value = value_of(values, count, x, across * area.columns);
        if (!isfinite(value)) {
            previous = -1;
            continue;
        }
        const int y = row_of(value, low, high, down * area.rows);
        if (screen->is_ascii) screen_put_glyph(screen, area.row + y, area.column + x, STYLE_GRAPH, '*');
        /* From behind the last dot to this one, so that a step is one line. */
        const int from = previous < 0 || previous == y ? y : previous < y ? previous + 1 : previous - 1;
        for (int at = from; !screen->is_ascii; at += from < y ? 1 : -1) {
            put_dot(screen, &area, x, at);
            if (at == y) break;
        }
        previous = y;
    }
}

int graph_bar(struct screen *screen, int row, int column, int columns, enum style style, double part)
{
    const int eighths = (int)lround(8 * columns * (part < 0 || !isfinite(part) ? 0 : part > 1 ? 1 : part));
    for (int i = 0; i < columns; i++) {
        const int filled = eighths - 8 * i;
        if (filled <= 0) break;
        if (screen->is_ascii)
            screen_put_glyph(screen, row, column + i, style, '#');
        else
            screen_put_glyph(screen, row, column + i, style, filled >= 8 ? 0x2588 : (uint32_t)(0x2590 - filled));
    }
    return column + columns;
}
