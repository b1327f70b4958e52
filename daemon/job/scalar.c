#include "daemon/job/scalar.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

__attribute__((format(printf, 2, 3))) static bool no(struct why *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return false;
}

static bool is_one_of(const char *text, const char *const words[])
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0) return true;
    return false;
}

static const char *const null_words[] = {"", "~", "null", "Null", "NULL", NULL};
static const char *const true_words[] = {"true", "True", "TRUE", NULL};
static const char *const false_words[] = {"false", "False", "FALSE", NULL};
static const char *const infinities[] = {".inf", ".Inf", ".INF", ".nan", ".NaN",     ".NAN",
                                         "inf",  "Inf",  "nan",  "NaN",  "infinity", NULL};

bool scalar_is_null(const struct node *node)
{
    return node->kind == NODE_SCALAR && node->plain && is_one_of(node->text, null_words);
}

/* Length of a decimal number at the start of the text, 0 when there is none: [-+] digits [. digits] [e [-+] digits]. */
static size_t decimal_length(const char *text, bool *whole)
{
    size_t at = strspn(text, "+-") == 1 ? 1 : 0;
    size_t digits = strspn(text + at, DIGITS);
    at += digits;
    *whole = digits > 0;
    if (text[at] == '.') {
        size_t fraction = strspn(text + at + 1, DIGITS);
        digits += fraction;
        at += 1 + fraction;
        *whole = false;
    }
    if (digits == 0) return 0;
    if (text[at] == 'e' || text[at] == 'E') {
        size_t sign = text[at + 1] == '+' || text[at + 1] == '-' ? 1 : 0;
        size_t exponent = strspn(text + at + 1 + sign, DIGITS);
        if (exponent == 0) return 0;
        at += 1 + sign + exponent;
        *whole = false;
    }
    return at;
}

static bool has_leading_zero(const char *text)
{
    text += *text == '+' || *text == '-';
    return text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

static bool is_prefixed_integer(const char *text)
{
    const char *digits = text[0] == '0' && text[1] == 'x'   ? "0123456789abcdefABCDEF"
                         : text[0] == '0' && text[1] == 'o' ? "01234567"
                                                            : NULL;
    return digits && text[2] && text[2 + strspn(text + 2, digits)] == '\0';
}

/* The text without its underscores, when that makes a number. */
static bool is_grouped(const char *text, char plain[static 32])
{
    size_t length = 0;
    for (const char *at = text; *at && length < 31; at++)
        if (*at != '_') plain[length++] = *at;
    plain[length] = '\0';
    bool whole;
    return strchr(text, '_') && decimal_length(plain, &whole) == length && length > 0 && length < 31;
}

static bool wrong_kind(const struct node *node, const char *wanted, struct why *why)
{
    return no(why, "is a %s where %s is wanted", node->kind == NODE_LIST ? "list" : "mapping", wanted);
}

/* Why a text that is not a number in decimal is refused, in the words that help most. */
static bool no_number(const char *text, const char *wanted, struct why *why)
{
    char plain[32];
    if (is_one_of(text, null_words)) return no(why, "is empty where %s is wanted", wanted);
    if (is_one_of(text + (*text == '+' || *text == '-'), infinities))
        return no(why, "%.40s is not a finite number", text);
    if (is_prefixed_integer(text))
        return no(why, "%.40s is not decimal: write %llu", text, strtoull(text + 2, NULL, text[1] == 'x' ? 16 : 8));
    if (is_grouped(text, plain)) return no(why, "%.40s is not a number: write %s", text, plain);
    return no(why, "%.40s is not %s", text, wanted);
}

bool scalar_number(const struct node *node, bool whole, double *out, struct why *why)
{
    const char *wanted = whole ? "a whole number" : "a number";
    if (node->kind != NODE_SCALAR) return wrong_kind(node, wanted, why);
    bool integral;
    size_t length = decimal_length(node->text, &integral);
    bool number = length > 0 && node->text[length] == '\0';
    if (!node->plain)
        return number ? no(why, "\"%.40s\" in quotes is a text: write %.40s", node->text, node->text)
                      : no(why, "\"%.40s\" is a text where %s is wanted", node->text, wanted);
    if (!number) return no_number(node->text, wanted, why);
    if (has_leading_zero(node->text)) {
        const char *digits = node->text + strspn(node->text, "+-");
        size_t zeros = strspn(digits, "0");
        if (digits[zeros] < '0' || digits[zeros] > '9') zeros--;
        return no(why, "%.40s has leading zeros: write %s%.40s", node->text, *node->text == '-' ? "-" : "",
                  digits + zeros);
    }
    errno = 0;
    double value = strtod(node->text, NULL);
    if (isinf(value)) return no(why, "%.40s is too large for a double", node->text);
    if (errno == ERANGE && value == 0.0) return no(why, "%.40s is too small for a double", node->text);
    if (whole && !integral && value == trunc(value) && fabs(value) < 1e15)
        return no(why, "%.40s is not a whole number in digits: write %.0f", node->text, value);
    if (whole && !integral) return no(why, "%.40s is not a whole number", node->text);
    *out = value;
    return true;
}

bool scalar_looks_like_number(const struct node *node)
{
    bool whole;
    size_t length = node->kind == NODE_SCALAR && node->plain ? decimal_length(node->text, &whole) : 0;
    return length > 0 && node->text[length] == '\0';
}

bool scalar_bool(const struct node *node, bool *out, struct why *why)
{
    static const char wanted[] = "true or false";
    if (node->kind != NODE_SCALAR) return wrong_kind(node, wanted, why);
    *out = is_one_of(node->text, true_words);
    bool known = *out || is_one_of(node->text, false_words);
    if (known && node->plain) return true;
    if (known) return no(why, "\"%.40s\" in quotes is a text: write %.40s", node->text, node->text);
    if (scalar_is_null(node)) return no(why, "is empty where %s is wanted", wanted);
    return no(why, "%.40s is not true or false", node->text);
}

bool scalar_text(const struct node *node, const char **out, struct why *why)
{
    static const char wanted[] = "a text";
    if (node->kind != NODE_SCALAR) return wrong_kind(node, wanted, why);
    const char *text = node->text;
    if (scalar_is_null(node)) return no(why, "is empty where %s is wanted", wanted);
    if (node->plain) {
        bool number = scalar_looks_like_number(node) || is_prefixed_integer(text) ||
                      (*text == '.' && is_one_of(text, infinities));
        bool boolean = is_one_of(text, true_words) || is_one_of(text, false_words);
        if (number || boolean)
            return no(why, "%.40s is a %s where a text is wanted: write \"%.40s\"", text, number ? "number" : "boolean",
                      text);
    }
    if (text_fault(text, strlen(text), true)) return no(why, "holds a line break or another control character");
    *out = text;
    return true;
}

bool scalar_seconds(const struct node *node, double *out, struct why *why)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}};
    bool whole;
    size_t length = node->kind == NODE_SCALAR ? decimal_length(node->text, &whole) : 0;
    bool has_unit =
        length > 0 && length < 64 && (isalpha((unsigned char)node->text[length]) || node->text[length] == ' ');
    if (!has_unit || has_leading_zero(node->text) || is_prefixed_integer(node->text))
        return scalar_number(node, false, out, why);
    const char *unit = node->text + length + strspn(node->text + length, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0) {
            /* A division where that is exact: 500 ms is 500 / 1000. */
            double value = strtod(node->text, NULL);
            *out = units[i].seconds < 1 ? value / 1e3 : value * units[i].seconds;
            return isfinite(*out) ? true : no(why, "%.40s is too large", node->text);
        }
    return no(why, "%.40s: no such unit of time; there are ms, s, min and h", node->text);
}

/* Bytes of the character at `at`, its code point in *code; 0 when it is not UTF-8. */
static size_t decode(const unsigned char *at, size_t left, uint32_t *code)
{
    if (at[0] < 0x80) {
        *code = at[0];
        return 1;
    }
    size_t length = at[0] >= 0xc2 && at[0] < 0xe0   ? 2
                    : (at[0] & 0xf0) == 0xe0        ? 3
                    : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                    : 0;
    if (length == 0 || length > left) return 0;
    *code = at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool legal = *code >= least[length] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return legal ? length : 0;
}

const char *text_fault(const char *text, size_t length, bool printable)
{
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        size_t bytes = decode((const unsigned char *)text + at, length - at, &code);
        bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
                       code == 0xfeff || code == 0xfffe || code == 0xffff;
        if (bytes == 0 || (printable && control)) return text + at;
        at += bytes;
    }
    return NULL;
}

struct decimal decimal_of(double value)
{
    struct decimal decimal;
    if (value == trunc(value) && fabs(value) < 1e15) {
        snprintf(decimal.text, sizeof decimal.text, "%.0f", value);
        return decimal;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(decimal.text, sizeof decimal.text, "%.*g", digits, value);
        if (strtod(decimal.text, NULL) == value) break;
    }
    return decimal;
}
