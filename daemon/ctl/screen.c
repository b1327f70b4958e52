#include "daemon/ctl/screen.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

int screen_open(struct screen *screen, int columns, int rows, bool is_ascii)
{
    columns = columns < 1 ? 1 : columns > SCREEN_COLUMNS_MAX ? SCREEN_COLUMNS_MAX : columns;
    rows = rows < 1 ? 1 : rows > SCREEN_ROWS_MAX ? SCREEN_ROWS_MAX : rows;
    *screen = (struct screen){columns, rows, is_ascii, calloc((size_t)columns * (size_t)rows, sizeof(struct cell))};
    if (!screen->cells) return -1;
    for (int i = 0; i < columns * rows; i++) screen->cells[i].glyph = ' ';
    return 0;
}

void screen_close(struct screen *screen)
{
    free(screen->cells);
    *screen = (struct screen){0};
}

static struct cell *cell_at(const struct screen *screen, int row, int column)
{
    const bool is_inside = row >= 0 && row < screen->rows && column >= 0 && column < screen->columns;
    return is_inside ? &screen->cells[row * screen->columns + column] : NULL;
}

void screen_put_glyph(struct screen *screen, int row, int column, enum style style, uint32_t glyph)
{
    struct cell *cell = cell_at(screen, row, column);
    if (cell) *cell = (struct cell){glyph, style};
}

/* One character of UTF-8 from its bytes; '?' for a byte that begins none. */
static uint32_t next_glyph(const char **text)
{
    const unsigned char *bytes = (const unsigned char *)*text;
    const int more = bytes[0] < 0x80 ? 0 : bytes[0] >= 0xf0 ? 3 : bytes[0] >= 0xe0 ? 2 : bytes[0] >= 0xc2 ? 1 : -1;
    uint32_t glyph = more == 0 ? bytes[0] : bytes[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            *text += 1;
            return '?';
        }
        glyph = glyph << 6 | (bytes[i] & 0x3f);
    }
    *text += 1 + (more > 0 ? more : 0);
    return more < 0 || glyph < 0x20 || (glyph >= 0x7f && glyph < 0xa0) ? '?' : glyph;
}

int screen_put(struct screen *screen, int row, int column, int limit, enum style style, const char *text)
{
    const int end = limit >= 0 && column + limit < screen->columns ? column + limit : screen->columns;
    while (*text) {
        uint32_t glyph = next_glyph(&text);
        if (screen->is_ascii && glyph > 0x7e) glyph = '?';
        int width = glyph < 0x7f ? 1 : wcwidth((wchar_t)glyph);
        if (width < 0) glyph = '?', width = 1;
        if (width == 0) continue; /* what combines with the one before has no cell of its own */
        if (column + width > end) return column;
        screen_put_glyph(screen, row, column, style, glyph);
        if (width == 2) screen_put_glyph(screen, row, column + 1, style, 0);
        column += width;
    }
    return column;
}

int screen_print(struct screen *screen, int row, int column, enum style style, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return screen_put(screen, row, column, -1, style, text);
}

/* ---- out ---- */

static void put_utf8(uint32_t glyph, FILE *to)
{
    if (glyph < 0x80) {
        fputc((int)glyph, to);
    } else if (glyph < 0x800) {
        fprintf(to, "%c%c", (int)(0xc0 | glyph >> 6), (int)(0x80 | (glyph & 0x3f)));
    } else if (glyph < 0x10000) {
        fprintf(to, "%c%c%c", (int)(0xe0 | glyph >> 12), (int)(0x80 | (glyph >> 6 & 0x3f)),
                (int)(0x80 | (glyph & 0x3f)));
    } else {
        fprintf(to, "%c%c%c%c", (int)(0xf0 | glyph >> 18), (int)(0x80 | (glyph >> 12 & 0x3f)),
                (int)(0x80 | (glyph >> 6 & 0x3f)), (int)(0x80 | (glyph & 0x3f)));
    }
}

static void put_style(enum style style, bool has_colours, FILE *to)
{
    static const struct {
        const char *colour, *mono; /* SGR parameters */
    } styles[] = {
        [STYLE_PLAIN] = {"0", "0"},    [STYLE_BOLD] = {"0;1", "0;1"},  [STYLE_DIM] = {"0;90", "0"},
        [STYLE_GOOD] = {"0;32", "0"},  [STYLE_WARN] = {"0;33", "0;1"}, [STYLE_BAD] = {"0;1;31", "0;7"},
        [STYLE_GRAPH] = {"0;36", "0"}, [STYLE_BAR] = {"0;34", "0"},    [STYLE_TITLE] = {"0;7", "0;7"},
    };
    fprintf(to, "\033[%sm", has_colours ? styles[style].colour : styles[style].mono);
}

static bool row_is_same(const struct screen *before, const struct screen *after, int row)
{
    if (!before || before->columns != after->columns || before->rows != after->rows) return false;
    for (int column = 0; column < after->columns; column++) {
        const struct cell *a = cell_at(before, row, column), *b = cell_at(after, row, column);
        if (a->glyph != b->glyph || a->style != b->style) return false;
    }
    return true;
}

/* Rows that differ are written whole, and what is left of their old text erased. */
void screen_paint(const struct screen *before, const struct screen *after, bool has_colours, FILE *to)
{
    if (!before || before->columns != after->columns || before->rows != after->rows) fputs("\033[0m\033[2J", to);
    for (int row = 0; row < after->rows; row++) {
        if (row_is_same(before, after, row)) continue;
        int end = after->columns;
        while (end > 0 && cell_at(after, row, end - 1)->glyph == ' ' &&
               cell_at(after, row, end - 1)->style != STYLE_TITLE)
            end--;
        fprintf(to, "\033[%d;1H", row + 1);
        enum style style = STYLE_PLAIN;
        put_style(style, has_colours, to);
        for (int column = 0; column < end; column++) {
            const struct cell *cell = cell_at(after, row, column);
            if (cell->style != style) put_style(style = cell->style, has_colours, to);
            if (cell->glyph) put_utf8(cell->glyph, to);
        }
        if (style != STYLE_PLAIN) put_style(STYLE_PLAIN, has_colours, to);
        if (end < after->columns) fputs("\033[K", to);
    }
}

void screen_write_row(const struct screen *screen, int row, FILE *to)
{
    int end = screen->columns;
    while (end > 0 && cell_at(screen, row, end - 1)->glyph == ' ') end--;
    for (int column = 0; column < end; column++)
        if (cell_at(screen, row, column)->glyph) put_utf8(cell_at(screen, row, column)->glyph, to);
}
