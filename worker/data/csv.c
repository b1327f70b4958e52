/*
 * csv files: a header line that names the columns, then one sequence a line. Columns are found by name: weight
 * (optional, 1), x0… and y0…, or g0… for a tape. Fields are plain decimal numbers, blanks around them allowed; g may be
 * inf or nan. Lines end in LF or CRLF, the last may lack it; a byte order mark and empty lines at the end are passed
 * over. Quotes and comments are not part of the format.
 */
#include "worker/data/format.h"

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* All numbers of a part are kept in memory: at most 2 GiB of them, on lines of at most 16 MiB. */
enum { LINE_MAX_BYTES = 1 << 24, CHUNK_BYTES = 1 << 16, FIELD_MAX_BYTES = 512 };
static const uint64_t numbers_max = UINT64_C(1) << 28;
#define WEIGHT_MAX (DBL_MAX / 2) /* of all rows: any order of adding them up stays finite */

/* A row in memory: its byte offset apart, its weight first, then the columns in the order of `name`. */
enum { WEIGHT = 0 };

struct table {
    struct data data;
    size_t columns;   /* with the weight */
    double *numbers;  /* [rows, columns] */
    uint64_t *offset; /* [rows] in its file */
    uint64_t rows, room, begin;
    double weight; /* of all rows */
    char *const *paths;
};

/* ---- lines ---- */

struct lines {
    struct file file;
    uint64_t read; /* bytes of the file that were read */
    char *text;    /* [room] holds [from, to) */
    size_t room, from, to;
    uint64_t number, offset; /* of the line that was given last, from 1; from 0 */
};

static int line_error(const struct lines *lines, struct error *error, const char *what)
{
    return error_set(error, STATUS_DATA, "%s:%" PRIu64 ": %s", lines->file.path, lines->number, what);
}

/* Reads on; makes room by moving what is left to the front, then by growing, up to 2·LINE_MAX_BYTES. */
static int fill(struct lines *lines, struct error *error)
{
    if (lines->from > 0) memmove(lines->text, lines->text + lines->from, lines->to - lines->from);
    lines->to -= lines->from;
    lines->from = 0;
    if (lines->to > LINE_MAX_BYTES) return line_error(lines, error, "the line is longer than 16 MiB");
    if (lines->to + CHUNK_BYTES > lines->room) {
        size_t room = lines->room ? 2 * lines->room : 2 * CHUNK_BYTES;
        char *text = realloc(lines->text, room);
        if (!text) return error_set(error, STATUS_INTERNAL, "%s: no memory for a line", lines->file.path);
        lines->text = text;
        lines->room = room;
    }
    uint64_t left = lines->file.size - lines->read;
    size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
    int result = file_read(&lines->file, lines->read, bytes, lines->text + lines->to, error);
    if (result < 0) return result;
    lines->read += bytes;
    lines->to += bytes;
    return 0;
}

/* The next line without its end, borrowed until the next call; 1, or 0 at the end of the file. */
static int next_line(struct lines *lines, char **line, size_t *length, struct error *error)
{
    lines->number++;
    lines->offset = lines->read - (lines->to - lines->from);
    size_t searched = 0;
    char *end = NULL;
    for (;;) {
        size_t have = lines->to - lines->from;
        if (have > searched) end = memchr(lines->text + lines->from + searched, '\n', have - searched);
        if (end || lines->read == lines->file.size) break;
        searched = have;
        int result = fill(lines, error);
        if (result < 0) return result;
    }
    if (!end && lines->from == lines->to) return 0;
    *line = lines->text + lines->from;
    *length = end ? (size_t)(end - *line) : lines->to - lines->from;
    lines->from += *length + (end != NULL);
    if (*length > 0 && (*line)[*length - 1] == '\r') --*length;
    if (memchr(*line, '\0', *length)) return line_error(lines, error, "a NUL byte; this is not a csv file in UTF-8");
    return 1;
}

static const char byte_order_mark[] = "\xEF\xBB\xBF";

/* ---- columns ---- */

/* Columns after the weight: `leading` of the first letter, then `trailing` of y. */
struct columns {
    char letter;
    uint32_t leading, trailing;
};

static struct columns columns_of(const struct data_shape *shape)
{
    return shape->size ? (struct columns){'g', shape->size, 0} : (struct columns){'x', shape->inputs, shape->outputs};
}

static void column_name(const struct columns *columns, size_t column, char name[32])
{
    if (column == WEIGHT)
        strcpy(name, "weight");
    else if (column <= columns->leading)
        snprintf(name, 32, "%c%zu", columns->letter, column - 1);
    else
        snprintf(name, 32, "y%zu", column - 1 - columns->leading);
}

/* "weight (optional), x0…x3, y0" */
static void columns_list(const struct columns *columns, char list[128])
{
    int length = snprintf(list, 128, "weight (optional), %c0", columns->letter);
    if (columns->leading > 1)
        length += snprintf(list + length, 128 - (size_t)length, "…%c%u", columns->letter, columns->leading - 1);
    if (columns->trailing > 0) length += snprintf(list + length, 128 - (size_t)length, ", y0");
    if (columns->trailing > 1) snprintf(list + length, 128 - (size_t)length, "…y%u", columns->trailing - 1);
}

/* The number of the column of that name, or −1. Leading zeros are another name. */
static ptrdiff_t column_of(const struct columns *columns, const char *name, size_t length)
{
    if (length == 6 && memcmp(name, "weight", 6) == 0) return WEIGHT;
    if (length < 2 || length > 10 || (name[1] == '0' && length > 2)) return -1;
    uint64_t index = 0;
    for (size_t i = 1; i < length; i++) {
        if (!isdigit((unsigned char)name[i])) return -1;
        index = 10 * index + (uint64_t)(name[i] - '0');
    }
    if (name[0] == columns->letter && index < columns->leading) return (ptrdiff_t)index + 1;
    if (name[0] == 'y' && index < columns->trailing) return (ptrdiff_t)(columns->leading + index) + 1;
    return -1;
}

/* Cuts the next field off *rest without the blanks around it; false when there is none left. */
static bool next_field(char **rest, char *end, char **field, size_t *length)
{
    if (!*rest) return false;
    char *comma = memchr(*rest, ',', (size_t)(end - *rest)), *last = comma ? comma : end;
    *field = *rest;
    *rest = comma ? comma + 1 : NULL;
    while (*field < last && (**field == ' ' || **field == '\t')) ++*field;
    while (last > *field && (last[-1] == ' ' || last[-1] == '\t')) last--;
    *length = (size_t)(last - *field);
    return true;
}

/* Up to 40 characters of a field for a message; what is not printable ASCII becomes '?'. */
static const char *shown(const char *field, size_t length, char text[64])
{
    size_t keep = length < 40 ? length : 40;
    for (size_t i = 0; i < keep; i++) text[i] = isprint((unsigned char)field[i]) ? field[i] : '?';
    strcpy(text + keep, length > keep ? "..." : "");
    return text;
}

/* order[i] = column of the i-th field of the lines that follow; *fields = how many there are. */
static int read_header(struct lines *lines, const struct columns *columns, char *line, size_t length, size_t *order,
                       size_t *fields, struct error *error)
{
    char list[128], text[64], name[32], *rest = line, *field;
    size_t count = 1 + (size_t)columns->leading + columns->trailing, size;
    columns_list(columns, list);
    bool *seen = calloc(count, sizeof *seen);
    if (!seen) return error_set(error, STATUS_INTERNAL, "%s: no memory for %zu columns", lines->file.path, count);
    int result = 0;
    for (*fields = 0; result == 0 && next_field(&rest, line + length, &field, &size);) {
        ptrdiff_t column = column_of(columns, field, size);
        if (column < 0)
            result = error_set(error, STATUS_DATA, "%s:1: unknown column '%s'; the columns of this model are %s",
                               lines->file.path, shown(field, size, text), list);
        else if (seen[column])
            result = error_set(error, STATUS_DATA, "%s:1: column %s twice", lines->file.path, shown(field, size, text));
        else {
            seen[column] = true;
            order[(*fields)++] = (size_t)column;
        }
    }
    for (size_t i = WEIGHT + 1; i < count && result == 0; i++) {
        column_name(columns, i, name);
        if (!seen[i])
            result = error_set(error, STATUS_DATA, "%s:1: column %s is missing; the columns of this model are %s",
                               lines->file.path, name, list);
    }
    free(seen);
    return result;
}

/* ---- numbers ---- */

/* [sign] digits [. digits] [e [sign] digits], at least one digit before the exponent: what strtod takes, less
 * hexadecimal, inf and nan. */
static bool is_decimal(const char *field, size_t length)
{
    size_t i = 0, digits = 0;
    if (i < length && (field[i] == '-' || field[i] == '+')) i++;
    for (; i < length && isdigit((unsigned char)field[i]); i++) digits++;
    if (i < length && field[i] == '.')
        for (i++; i < length && isdigit((unsigned char)field[i]); i++) digits++;
    if (digits == 0) return false;
    if (i == length) return true;
    if (field[i] != 'e' && field[i] != 'E') return false;
    i++;
    if (i < length && (field[i] == '-' || field[i] == '+')) i++;
    size_t exponent = i;
    while (i < length && isdigit((unsigned char)field[i])) i++;
    return i == length && i > exponent;
}

static bool spells_zero(const char *field, size_t length)
{
    for (size_t i = 0; i < length && field[i] != 'e' && field[i] != 'E'; i++)
        if (field[i] >= '1' && field[i] <= '9') return false;
    return true;
}

static bool is_nonfinite(const char *field, size_t length, double *value)
{
    bool negative = length > 0 && field[0] == '-';
    size_t sign = length > 0 && (field[0] == '-' || field[0] == '+');
    field += sign;
    length -= sign;
    bool infinite =
        (length == 3 && strncasecmp(field, "inf", 3) == 0) || (length == 8 && strncasecmp(field, "infinity", 8) == 0);
    if (!infinite && !(length == 3 && strncasecmp(field, "nan", 3) == 0)) return false;
    *value = infinite ? (negative ? -HUGE_VAL : HUGE_VAL) : (double)NAN;
    return true;
}

/* What is wrong with the field as a number of that column, or NULL. */
static const char *parse_number(const struct data_shape *shape, size_t column, const char *field, size_t length,
                                double *value)
{
    bool tape = shape->size > 0, y = column > (size_t)shape->inputs && !tape;
    if (length == 0) return "nothing, wanted a number";
    if (is_nonfinite(field, length, value)) return tape && column != WEIGHT ? NULL : "wanted a finite number";
    if (!is_decimal(field, length)) return "wanted a number";
    if (length > FIELD_MAX_BYTES) return "is longer than a number has to be (512 bytes)";
    char text[FIELD_MAX_BYTES + 1];
    memcpy(text, field, length);
    text[length] = '\0';
    *value = strtod(text, NULL);
    if (!isfinite(*value)) return "beyond the range of double precision";
    if (column == WEIGHT && *value < 0) return "wanted a weight of 0 or more";
    if (column == WEIGHT && !(*value > 0) && !spells_zero(field, length))
        return "below the range of double precision, where it would mask its row";
    if (y && shape->classes && !(*value >= 0 && *value < shape->classes && *value == floor(*value)))
        return "wanted a class";
    if (y && shape->critic && !is_critics(*value)) return "wanted 1 (real), -1 (not real) or 0 (between)";
    return NULL;
}

static int field_error(const struct table *table, const struct lines *lines, size_t column, const char *field,
                       size_t length, const char *why, struct error *error)
{
    const struct columns columns = columns_of(&table->data.shape);
    char name[32], text[64], range[48] = "";
    column_name(&columns, column, name);
    if (strcmp(why, "wanted a class") == 0) snprintf(range, sizeof range, " in 0…%u", table->data.shape.classes - 1);
    const char *quoted = shown(field, length, text);
    return error_set(error, STATUS_DATA, "%s:%" PRIu64 ": column %s: %s%s%s%s%s", lines->file.path, lines->number, name,
                     length ? "'" : "", quoted, length ? "' " : "", why, range);
}

/* ---- rows ---- */

static int make_room(struct table *table, const char *path, struct error *error)
{
    uint64_t room = table->room ? 2 * table->room : 1024, most = numbers_max / table->columns;
    if (room > most) room = most;
    if (room == table->rows)
        return error_set(error, STATUS_DATA,
                         "%s: more than %" PRIu64 " rows of %zu numbers, the most that are kept in memory", path, most,
                         table->columns);
    double *numbers = realloc(table->numbers, room * table->columns * sizeof *numbers);
    if (numbers) table->numbers = numbers;
    uint64_t *offset = realloc(table->offset, room * sizeof *offset);
    if (offset) table->offset = offset;
    if (!numbers || !offset) return error_set(error, STATUS_INTERNAL, "%s: no memory for %" PRIu64 " rows", path, room);
    table->room = room;
    return 0;
}

static int read_row(struct table *table, const struct lines *lines, char *line, size_t length, const size_t *order,
                    size_t fields, struct error *error)
{
    int result = table->rows == table->room ? make_room(table, lines->file.path, error) : 0;
    if (result < 0) return result;
    double *row = table->numbers + table->rows * table->columns;
    row[WEIGHT] = 1;
    char *rest = line, *field;
    size_t size, count = 0;
    for (; next_field(&rest, line + length, &field, &size); count++) {
        if (count >= fields) continue;
        const char *why = parse_number(&table->data.shape, order[count], field, size, &row[order[count]]);
        if (why) return field_error(table, lines, order[count], field, size, why, error);
    }
    if (count != fields)
        return error_set(error, STATUS_DATA, "%s:%" PRIu64 ": %zu fields, but the header has %zu", lines->file.path,
                         lines->number, count, fields);
    table->weight += row[WEIGHT];
    if (table->weight > WEIGHT_MAX)
        return error_set(error, STATUS_DATA,
                         "%s:%" PRIu64 ": with weight %g the weights sum to more than double precision holds",
                         lines->file.path, lines->number, row[WEIGHT]);
    table->offset[table->rows++] = lines->offset;
    return 0;
}

static int read_rows(struct table *table, struct lines *lines, const size_t *order, size_t fields, struct error *error)
{
    char *line;
    size_t length;
    uint64_t empty = 0;
    int result;
    while ((result = next_line(lines, &line, &length, error)) == 1) {
        if (length == 0) {
            empty = empty ? empty : lines->number;
            continue;
        }
        if (empty) return error_set(error, STATUS_DATA, "%s:%" PRIu64 ": an empty line", lines->file.path, empty);
        result = read_row(table, lines, line, length, order, fields, error);
        if (result < 0) break;
    }
    return result;
}

static int read_lines(struct table *table, struct lines *lines, size_t *order, struct error *error)
{
    const struct columns columns = columns_of(&table->data.shape);
    char *line;
    size_t length, fields = 0;
    uint64_t before = table->rows;
    int result = next_line(lines, &line, &length, error);
    if (result < 0) return result;
    size_t mark = sizeof byte_order_mark - 1;
    if (result == 1 && length >= mark && memcmp(line, byte_order_mark, mark) == 0) {
        line += mark;
        length -= mark;
    }
    if (result == 0 || length == 0)
        return error_set(error, STATUS_DATA, "%s:1: no header line with the names of the columns", lines->file.path);
    result = read_header(lines, &columns, line, length, order, &fields, error);
    if (result == 0) result = read_rows(table, lines, order, fields, error);
    if (result == 0 && table->rows == before)
        result = error_set(error, STATUS_DATA, "%s: a header and no row", lines->file.path);
    return result;
}

static int read_file(struct table *table, const char *path, size_t *order, struct error *error)
{
    struct lines lines = {0};
    int result = file_open(&lines.file, path, error);
    if (result < 0) return result;
    result = file_check_unpacked(&lines.file, error);
    if (result == 0) result = read_lines(table, &lines, order, error);
    file_close(&lines.file);
    free(lines.text);
    return result;
}

/* ---- the class ---- */

static void csv_close(struct data *data)
{
    struct table *table = (struct table *)data;
    free(table->numbers);
    free(table->offset);
    free(table);
}

static int read_part(struct table *table, const struct part *part, struct error *error)
{
    size_t *order = malloc(table->columns * sizeof *order);
    if (!order) return error_set(error, STATUS_INTERNAL, "no memory for %zu columns", table->columns);
    int result = 0;
    for (size_t i = 0; i < part->count && result == 0; i++) {
        table->data.first[i] = table->rows;
        result = read_file(table, part->paths[i], order, error);
    }
    free(order);
    if (result < 0) return result;
    table->begin = data_lay_rows(&table->data, part, table->rows);
    if (table->data.sequences == 0)
        return error_set(error, STATUS_DATA, "data.validation: %g of %" PRIu64 " rows leaves none for %s",
                         part->fraction, table->rows, part->end ? "validation" : "training");
    return 0;
}

static int csv_open(struct data **out, Gacc__V1__DataFormat format, const struct part *part,
                    const struct data_shape *shape, struct error *error)
{
    (void)format;
    struct table *table = calloc(1, sizeof *table);
    if (!table) return error_set(error, STATUS_INTERNAL, "no memory for a data set");
    const struct columns columns = columns_of(shape);
    table->data = (struct data){.class = &csv_class, .shape = *shape};
    table->columns = 1 + (size_t)columns.leading + columns.trailing;
    table->paths = part->paths;
    int result = data_reserve(&table->data, part->count, error);
    if (result == 0) result = read_part(table, part, error);
    if (result < 0)
        data_close(&table->data);
    else
        *out = &table->data;
    return result;
}

static const double *row_of(const struct table *table, uint64_t sequence)
{
    return table->numbers + (table->begin + sequence) * table->columns;
}

static double csv_weight(const struct data *data, uint64_t sequence)
{
    return row_of((const struct table *)data, sequence)[WEIGHT];
}

static int32_t csv_label(const struct data *data, uint64_t sequence)
{
    return (int32_t)row_of((const struct table *)data, sequence)[WEIGHT + 1 + data->shape.inputs];
}

static int csv_read(struct data *data, uint64_t sequence, struct micro_batch *batch, struct error *error)
{
    (void)error;
    const struct data_shape *shape = &data->shape;
    const double *row = row_of((const struct table *)data, sequence), *value = row + WEIGHT + 1;
    const size_t values = shape->size ? shape->size : shape->inputs;
    batch->weight[batch->rows] = row[WEIGHT];
    memcpy(batch->x + batch->rows * values, value, values * sizeof *value);
    if (shape->classes)
        batch->targets[batch->rows] = csv_label(data, sequence);
    else if (shape->outputs)
        memcpy(batch->y + batch->rows * shape->outputs, value + values, shape->outputs * sizeof *value);
    return 0;
}

static void csv_locate(const struct data *data, uint64_t sequence, const char **path, uint64_t *offset_bytes)
{
    const struct table *table = (const struct table *)data;
    *path = table->paths[data_file_of(data, sequence)];
    *offset_bytes = table->offset[table->begin + sequence];
}

const struct data_class csv_class = {.open = csv_open,
                                     .weight = csv_weight,
                                     .label = csv_label,
                                     .read = csv_read,
                                     .locate = csv_locate,
                                     .close = csv_close};
