/*
 * A screen as cells, pure: text goes in at a row and a column, and comes out as what a terminal has to be sent so that
 * it shows this screen instead of the one before. Only what every terminal since the VT100 knows is sent, so no
 * terminal database has to know this one, as it may not at the other end of an ssh.
 */
#ifndef GACC_CTL_SCREEN_H
#define GACC_CTL_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum style {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_GOOD,
    STYLE_WARN,
    STYLE_BAD,
    STYLE_GRAPH,
    STYLE_BAR,
    STYLE_TITLE
};

struct cell {
    uint32_t glyph; /* Unicode; 0: the right half of a wide one */
    enum style style;
};

#define SCREEN_COLUMNS_MAX 1000
#define SCREEN_ROWS_MAX 500

struct screen {
    int columns, rows;
    bool is_ascii;      /* the terminal's locale is not UTF-8 */
    struct cell *cells; /* [rows][columns] */
};

/* Blank; larger than the maximum is cut. −1: no memory. */
int screen_open(struct screen *screen, int columns, int rows, bool is_ascii);
void screen_close(struct screen *screen);

/* Puts UTF-8 text, as far as the row goes and `limit` columns at most (−1: no limit), and returns the column behind it.
 * Control characters and broken bytes become '?', so does all beyond ASCII on an ASCII screen. Widths are those of the
 * locale. Outside of the screen nothing is put. */
int screen_put(struct screen *screen, int row, int column, int limit, enum style style, const char *text);
__attribute__((format(printf, 5, 6))) int screen_print(struct screen *screen, int row, int column, enum style style,
                                                       const char *format, ...);
void screen_put_glyph(struct screen *screen, int row, int column, enum style style, uint32_t glyph);

/* What changes `before` (NULL: an empty terminal) into `after`. */
void screen_paint(const struct screen *before, const struct screen *after, bool has_colours, FILE *to);
/* The text of a row without blanks at its end, for tests and files. */
void screen_write_row(const struct screen *screen, int row, FILE *to);

#endif
