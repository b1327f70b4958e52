#include "worker/facts.h"

static void print_value(const json_t *value, FILE *to)
{
    if (json_is_string(value))
        fprintf(to, " %s\n", json_string_value(value));
    else if (json_is_integer(value))
        fprintf(to, " %" JSON_INTEGER_FORMAT "\n", json_integer_value(value));
    else if (json_is_real(value))
        fprintf(to, " %.17g\n", json_real_value(value));
    else
        fprintf(to, " %s\n", json_is_true(value) ? "yes" : "no");
}

static void print_lines(json_t *object, FILE *to)
{
    const char *key, *inner_key;
    json_t *value, *inner;
    size_t i;
    json_object_foreach(object, key, value)
    {
        if (json_is_array(value)) {
            json_array_foreach(value, i, inner)
            {
                fprintf(to, "%s:", key);
                print_value(inner, to);
            }
            continue;
        }
        fprintf(to, "%s:", key);
        if (json_is_object(value)) {
            fputc('\n', to);
            json_object_foreach(value, inner_key, inner)
            {
                fprintf(to, "  %s:", inner_key);
                print_value(inner, to);
            }
        } else
            print_value(value, to);
    }
}

int facts_print(const struct facts *facts, bool as_json, FILE *to, struct error *error)
{
    if (facts->failed) return error_set(error, STATUS_INTERNAL, "out of memory");
    int result = 0;
    if (as_json)
        result = json_dumpf(facts->object, to, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) || fputc('\n', to) == EOF;
    else
        print_lines(facts->object, to);
    return result || ferror(to) ? error_set(error, STATUS_IO, "what was found out could not be written") : 0;
}
