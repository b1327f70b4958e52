#include "daemon/job/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/paths.h"
#include "proto/endpoint.h"

/* A value on its way into the message. */
struct reading {
    const struct key *key;
    char *base;
    const struct node *node;
    const char *path;
    struct error *error;
};

static int refuse(const struct reading *reading, const struct node *node, const struct why *why)
{
    return node_fail(node, reading->path, reading->error, "%s", why->text);
}

static int no_memory(const struct reading *reading)
{
    return error_set(reading->error, STATUS_INTERNAL, "out of memory");
}

/* Field i of equal neighbours in the message. */
#define FIELD(type, reading, i) ((type *)(void *)((reading)->base + (reading)->key->offset) + (i))

static bool in_range(const struct key *key, const char *text, double value, struct why *why)
{
    const char *sign = NULL;
    double bound = 0;
    if (key->above ? value <= key->least : value < key->least)
        sign = key->above ? "above" : "at least", bound = key->least;
    else if (key->most != 0 && (key->below ? value >= key->most : value > key->most))
        sign = key->below ? "below" : "at most", bound = key->most;
    if (!sign) return true;
    snprintf(why->text, sizeof why->text, "%.40s is too %s: must be %s %s%s", text,
             bound == key->most && key->most != 0 && value >= bound ? "large" : "small", sign, decimal_of(bound).text,
             key->nullable ? ", or null" : "");
    return false;
}

static int read_number(const struct reading *reading, const struct node *node, bool whole, double *out)
{
    struct why why;
    if (!scalar_number(node, whole, out, &why) || !in_range(reading->key, node->text, *out, &why))
        return refuse(reading, node, &why);
    return 0;
}

static int read_double(const struct reading *reading)
{
    double *field = FIELD(double, reading, 0);
    *field = 0;
    if (reading->key->nullable && scalar_is_null(reading->node)) return 0;
    return read_number(reading, reading->node, false, field);
}

static int read_u32(const struct reading *reading)
{
    double value;
    int status = read_number(reading, reading->node, true, &value);
    if (!status) *FIELD(uint32_t, reading, 0) = (uint32_t)value;
    return status;
}

static int read_u64(const struct reading *reading)
{
    double value;
    int status = read_number(reading, reading->node, true, &value);
    if (!status) *FIELD(uint64_t, reading, 0) = (uint64_t)value; /* exact: no bound is above 2^53 */
    return status;
}

static int read_bool(const struct reading *reading)
{
    bool value;
    struct why why;
    if (!scalar_bool(reading->node, &value, &why)) return refuse(reading, reading->node, &why);
    *FIELD(protobuf_c_boolean, reading, 0) = value;
    return 0;
}

static int read_seconds(const struct reading *reading)
{
    struct why why;
    double *field = FIELD(double, reading, 0);
    if (!scalar_seconds(reading->node, field, &why) || !in_range(reading->key, reading->node->text, *field, &why))
        return refuse(reading, reading->node, &why);
    return 0;
}

static size_t count_children(const struct node *node)
{
    size_t count = 0;
    for (const struct node *child = node->children; child; child = child->next) count++;
    return count;
}

static int read_pair(const struct reading *reading)
{
    const struct node *node = reading->node;
    if (node->kind != NODE_LIST || count_children(node) != 2)
        return node_fail(node, reading->path, reading->error, "must be a list of two numbers, such as %s",
                         reading->key->fallback);
    int status = read_number(reading, node->children, false, FIELD(double, reading, 0));
    return status ? status : read_number(reading, node->children->next, false, FIELD(double, reading, 1));
}

static int read_choice(const struct reading *reading)
{
    const struct node *node = reading->node;
    const struct choice *choice = reading->key->choices;
    if (node->kind != NODE_SCALAR)
        return node_fail(node, reading->path, reading->error, "is a %s; it %s",
                         node->kind == NODE_LIST ? "list" : "mapping", choice_suggestion(reading->key, "").text);
    for (; choice->name; choice++)
        if (strcmp(choice->name, node->text) == 0) {
            *FIELD(int, reading, 0) = choice->value;
            return 0;
        }
    const struct absent *absent = absent_find(reading->key->path, node->text);
    if (absent) return node_fail(node, reading->path, reading->error, "%s: %s", node->text, absent->why);
    return node_fail(node, reading->path, reading->error, "%.60s %s", *node->text ? node->text : "nothing",
                     choice_suggestion(reading->key, node->text).text);
}

/* Takes `text`. */
static int store_text(const struct reading *reading, char *text)
{
    char **field = FIELD(char *, reading, 0);
    if (!text) return no_memory(reading);
    if (*field != protobuf_c_empty_string) free(*field);
    *field = text;
    return 0;
}

static int take_text(const struct reading *reading, const struct node *node, const char **text)
{
    struct why why;
    if (!scalar_text(node, text, &why)) return refuse(reading, node, &why);
    return **text ? 0 : node_fail(node, reading->path, reading->error, "is an empty text");
}

static int read_text(const struct reading *reading)
{
    const char *text;
    int status = take_text(reading, reading->node, &text);
    return status ? status : store_text(reading, strdup(text));
}

static int read_path(const struct reading *reading)
{
    const char *text;
    int status = take_text(reading, reading->node, &text);
    if (status) return status;
    struct why why;
    char *path = path_expand(text, &why);
    return path ? store_text(reading, path) : refuse(reading, reading->node, &why);
}

/* tcp://HOST:PORT */
static bool is_tcp(const char *text)
{
    struct endpoint endpoint;
    return !strncmp(text, "tcp://", 6) && endpoint_parse(&endpoint, text) && !strpbrk(endpoint.host, "/ ");
}

/* The default is the automatic one; unix:PATH where the default is a unix socket. */
static int read_endpoint(const struct reading *reading)
{
    enum { SOCKET_PATH_MOST = 107 }; /* sun_path less its NUL */
    int status = read_path(reading);
    if (status) return status;
    const char *text = *FIELD(char *, reading, 0);
    bool unix_allowed = strncmp(reading->key->fallback, "unix:", 5) == 0;
    bool is_unix = unix_allowed && strncmp(text, "unix:", 5) == 0 && text[5];
    if (is_unix && strlen(text + 5) > SOCKET_PATH_MOST)
        return node_fail(reading->node, reading->path, reading->error,
                         "a unix socket's path has at most %d bytes, this one %zu", SOCKET_PATH_MOST, strlen(text + 5));
    if (is_unix || is_tcp(text) || strcmp(text, reading->key->fallback) == 0) return 0;
    return node_fail(reading->node, reading->path, reading->error, "%.100s is not %s%s or tcp://HOST:PORT", text,
                     reading->key->fallback, unix_allowed ? ", unix:PATH" : "");
}

static int read_paths(const struct reading *reading)
{
    const struct node *node = reading->node;
    bool is_list = node->kind == NODE_LIST;
    if (is_list && !node->children) return node_fail(node, reading->path, reading->error, "is an empty list");
    struct path_list list = {0};
    int status = 0;
    for (const struct node *item = is_list ? node->children : node; item && !status;
         item = is_list ? item->next : NULL) {
        const char *text;
        struct why why;
        status = take_text(reading, item, &text);
        if (status) break;
        status = path_list_add(&list, text, &why);
        if (status) {
            refuse(reading, item, &why);
            if (reading->error) reading->error->status = (enum status)(-status);
        }
    }
    if (status) {
        path_list_free(&list);
        return status;
    }
    *FIELD(size_t, reading, 0) = list.count;
    *FIELD(char **, reading, 1) = list.paths;
    return 0;
}

static int read_split(const struct reading *reading)
{
    if (scalar_is_null(reading->node)) return 0;
    if (!scalar_looks_like_number(reading->node)) return read_paths(reading);
    return read_number(reading, reading->node, false, FIELD(double, reading, 2));
}

static int read_u32_list(const struct reading *reading)
{
    const struct node *node = reading->node;
    size_t count = count_children(node), i = 0;
    if (node->kind != NODE_LIST)
        return node_fail(node, reading->path, reading->error, "must be a list of whole numbers");
    if (count > U32_LIST_LIMIT)
        return node_fail(node, reading->path, reading->error, "has %zu elements, more than %d", count, U32_LIST_LIMIT);
    if (count == 0) return 0;
    uint32_t *values = calloc(count, sizeof *values);
    if (!values) return no_memory(reading);
    *FIELD(size_t, reading, 0) = count;
    *FIELD(uint32_t *, reading, 1) = values;
    for (const struct node *item = node->children; item; item = item->next) {
        double value;
        int status = read_number(reading, item, true, &value);
        if (status) return status;
        values[i++] = (uint32_t)value;
    }
    return 0;
}

static int read_texts(const struct reading *reading)
{
    const struct node *node = reading->node;
    const bool is_list = node->kind == NODE_LIST;
    const size_t count = is_list ? count_children(node) : 1;
    if (count == 0) return node_fail(node, reading->path, reading->error, "is an empty list");
    if (count > TEXTS_LIMIT)
        return node_fail(node, reading->path, reading->error, "has %zu elements, more than %d", count, TEXTS_LIMIT);
    char **texts = calloc(count, sizeof *texts);
    if (!texts) return no_memory(reading);
    *FIELD(char **, reading, 1) = texts;
    for (const struct node *item = is_list ? node->children : node; item; item = is_list ? item->next : NULL) {
        const char *text;
        int status = take_text(reading, item, &text);
        if (status) return status;
        if (!(*texts = strdup(text))) return no_memory(reading);
        texts++;
        ++*FIELD(size_t, reading, 0);
    }
    return 0;
}

static int read_tensor(const struct reading *reading, const struct node *node, Gacc__V1__TensorValues *tensor)
{
    char path[384];
    snprintf(path, sizeof path, "%s.%s", reading->path, node->key);
    if (text_fault(node->key, strlen(node->key), true) || !*node->key || strlen(node->key) > 255)
        return node_fail_key(node, reading->path, reading->error, "not a tensor's name");
    if (node->kind != NODE_LIST || !node->children)
        return node_fail(node, path, reading->error, "must be a list of numbers");
    size_t count = count_children(node);
    if (count > TENSOR_VALUES_LIMIT)
        return node_fail(node, path, reading->error, "has %zu numbers, more than %d; use model.init.file", count,
                         TENSOR_VALUES_LIMIT);
    tensor->name = strdup(node->key);
    if (!tensor->name) {
        tensor->name = (char *)protobuf_c_empty_string;
        return no_memory(reading);
    }
    tensor->values = calloc(count, sizeof *tensor->values);
    if (!tensor->values) return no_memory(reading);
    for (const struct node *item = node->children; item; item = item->next) {
        struct why why;
        if (!scalar_number(item, false, &tensor->values[tensor->n_values], &why))
            return node_fail(item, path, reading->error, "%s", why.text);
        tensor->n_values++;
    }
    return 0;
}

static int read_tensors(const struct reading *reading)
{
    const struct node *node = reading->node;
    if (node->kind != NODE_MAPPING || !node->children)
        return node_fail(node, reading->path, reading->error, "must be a mapping of tensor names to lists of numbers");
    size_t *count = FIELD(size_t, reading, 0), numbers = 0;
    Gacc__V1__TensorValues **tensors = calloc(count_children(node), sizeof *tensors);
    if (!tensors) return no_memory(reading);
    *FIELD(Gacc__V1__TensorValues **, reading, 1) = tensors;
    for (const struct node *child = node->children; child; child = child->next) {
        Gacc__V1__TensorValues *tensor = malloc(sizeof *tensor);
        if (!tensor) return no_memory(reading);
        gacc__v1__tensor_values__init(tensor);
        tensors[(*count)++] = tensor;
        int status = read_tensor(reading, child, tensor);
        if (status) return status;
        numbers += tensor->n_values;
        if (numbers > TENSOR_VALUES_LIMIT)
            return node_fail(node, reading->path, reading->error, "has more than %d numbers; use model.init.file",
                             TENSOR_VALUES_LIMIT);
    }
    return 0;
}

/* Printing. */

/* In double quotes; the text holds no control characters. */
static void print_quoted(const char *text, FILE *to)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void print_path(const char *path, FILE *to)
{
    char *escaped = path_escape(path);
    print_quoted(escaped ? escaped : "", to);
    free(escaped);
}

/* Field i of equal neighbours, for reading. */
#define CONST_FIELD(type, key, base, i) ((type const *)(const void *)((const char *)(base) + (key)->offset) + (i))

static void print_bool(const struct key *key, const void *base, FILE *to)
{
    fputs(*CONST_FIELD(protobuf_c_boolean, key, base, 0) ? "true" : "false", to);
}

static void print_choice(const struct key *key, const void *base, FILE *to)
{
    fputs(choice_name(key->choices, *CONST_FIELD(int, key, base, 0)), to);
}

static void print_u32(const struct key *key, const void *base, FILE *to)
{
    fprintf(to, "%u", *CONST_FIELD(uint32_t, key, base, 0));
}

static void print_u64(const struct key *key, const void *base, FILE *to)
{
    fprintf(to, "%llu", (unsigned long long)*CONST_FIELD(uint64_t, key, base, 0));
}

static void print_double(const struct key *key, const void *base, FILE *to)
{
    double value = *CONST_FIELD(double, key, base, 0);
    fputs(key->nullable && value == 0 ? "null" : decimal_of(value).text, to);
}

static void print_pair(const struct key *key, const void *base, FILE *to)
{
    fprintf(to, "[%s, %s]", decimal_of(*CONST_FIELD(double, key, base, 0)).text,
            decimal_of(*CONST_FIELD(double, key, base, 1)).text);
}

static void print_seconds(const struct key *key, const void *base, FILE *to)
{
    fprintf(to, "%s s", decimal_of(*CONST_FIELD(double, key, base, 0)).text);
}

static void print_text(const struct key *key, const void *base, FILE *to)
{
    print_quoted(*CONST_FIELD(char *, key, base, 0), to);
}

static void print_path_key(const struct key *key, const void *base, FILE *to)
{
    print_path(*CONST_FIELD(char *, key, base, 0), to);
}

static void print_paths(const struct key *key, const void *base, FILE *to)
{
    size_t count = *CONST_FIELD(size_t, key, base, 0);
    char *const *paths = *CONST_FIELD(char *const *, key, base, 1);
    if (count != 1) fputc('[', to);
    for (size_t i = 0; i < count; i++) {
        if (i) fputs(", ", to);
        print_path(paths[i], to);
    }
    if (count != 1) fputc(']', to);
}

static void print_split(const struct key *key, const void *base, FILE *to)
{
    double fraction = *CONST_FIELD(double, key, base, 2);
    if (*CONST_FIELD(size_t, key, base, 0) > 0)
        print_paths(key, base, to);
    else
        fputs(fraction == 0 ? "null" : decimal_of(fraction).text, to);
}

static void print_u32_list(const struct key *key, const void *base, FILE *to)
{
    size_t count = *CONST_FIELD(size_t, key, base, 0);
    const uint32_t *values = *CONST_FIELD(uint32_t *, key, base, 1);
    fputc('[', to);
    for (size_t i = 0; i < count; i++) fprintf(to, "%s%u", i ? ", " : "", values[i]);
    fputc(']', to);
}

static void print_texts(const struct key *key, const void *base, FILE *to)
{
    const size_t count = *CONST_FIELD(size_t, key, base, 0);
    char *const *texts = *CONST_FIELD(char *const *, key, base, 1);
    for (size_t i = 0; i < count; i++) {
        fputs(i ? ", " : "[", to);
        print_quoted(texts[i], to);
    }
    fputc(']', to);
}

static void print_tensors(const struct key *key, const void *base, FILE *to)
{
    size_t count = *CONST_FIELD(size_t, key, base, 0);
    Gacc__V1__TensorValues *const *tensors = *CONST_FIELD(Gacc__V1__TensorValues *const *, key, base, 1);
    for (size_t i = 0; i < count; i++) {
        fputs(i ? ", " : "{", to);
        print_quoted(tensors[i]->name, to);
        fputs(": [", to);
        for (size_t j = 0; j < tensors[i]->n_values; j++)
            fprintf(to, "%s%s", j ? "," : "", decimal_of(tensors[i]->values[j]).text);
        fputc(']', to);
    }
    fputc('}', to);
}

static const struct {
    const char *name;
    int (*read)(const struct reading *reading);
    void (*print)(const struct key *key, const void *base, FILE *to);
} types[KEY_TYPES] = {
    [KEY_SECTION] = {"section", NULL, NULL},
    [KEY_GROUPS] = {"list of sections", NULL, NULL},
    [KEY_BOOL] = {"boolean", read_bool, print_bool},
    [KEY_CHOICE] = {"choice", read_choice, print_choice},
    [KEY_U32] = {"whole number", read_u32, print_u32},
    [KEY_U64] = {"whole number", read_u64, print_u64},
    [KEY_NUMBER] = {"number", read_double, print_double},
    [KEY_PAIR] = {"two numbers", read_pair, print_pair},
    [KEY_SECONDS] = {"time", read_seconds, print_seconds},
    [KEY_TEXT] = {"text", read_text, print_text},
    [KEY_PATH] = {"path", read_path, print_path_key},
    [KEY_ENDPOINT] = {"address", read_endpoint, print_path_key},
    [KEY_PATHS] = {"paths", read_paths, print_paths},
    [KEY_SPLIT] = {"paths or fraction", read_split, print_split},
    [KEY_U32_LIST] = {"list of whole numbers", read_u32_list, print_u32_list},
    [KEY_TEXTS] = {"texts", read_texts, print_texts},
    [KEY_TENSORS] = {"mapping to lists of numbers", read_tensors, print_tensors},
};

int value_read(const struct key *key, void *base, const struct node *node, const char *path, struct error *error)
{
    struct reading reading = {.key = key, .base = base, .node = node, .path = path, .error = error};
    return types[key->type].read(&reading);
}

void value_print(const struct key *key, const void *base, FILE *to)
{
    types[key->type].print(key, base, to);
}

bool value_is_absent(const struct key *key, const void *base)
{
    if (!key->fallback || *key->fallback) return false;
    switch (key->type) {
    case KEY_U32:
        return *CONST_FIELD(uint32_t, key, base, 0) == 0;
    case KEY_U64:
        return *CONST_FIELD(uint64_t, key, base, 0) == 0;
    case KEY_NUMBER:
        return key->none_at_zero ? *CONST_FIELD(double, key, base, 0) == 0
                                 : *CONST_FIELD(double, key, base, 0) < 0; /* weight_decay of a group */
    case KEY_PATHS:
    case KEY_U32_LIST:
    case KEY_TENSORS:
    case KEY_TEXTS:
        return *CONST_FIELD(size_t, key, base, 0) == 0;
    case KEY_TEXT:
    case KEY_PATH:
        return **CONST_FIELD(char *, key, base, 0) == '\0';
    default:
        return false;
    }
}

static bool is_choice(const struct key *key, int value)
{
    for (const struct choice *choice = key->choices; choice->name; choice++)
        if (choice->value == value) return true;
    return false;
}

static bool is_number_of(const struct key *key, double value)
{
    struct why why;
    return (key->nullable && value == 0) || (isfinite(value) && in_range(key, "", value, &why));
}

bool value_is_legal(const struct key *key, const void *base)
{
    switch (key->type) {
    case KEY_CHOICE:
        return is_choice(key, *CONST_FIELD(int, key, base, 0));
    case KEY_U32:
        return is_number_of(key, *CONST_FIELD(uint32_t, key, base, 0));
    case KEY_U64:
        return is_number_of(key, (double)*CONST_FIELD(uint64_t, key, base, 0));
    case KEY_NUMBER:
    case KEY_SECONDS:
        return is_number_of(key, *CONST_FIELD(double, key, base, 0));
    case KEY_PAIR:
        return is_number_of(key, *CONST_FIELD(double, key, base, 0)) &&
               is_number_of(key, *CONST_FIELD(double, key, base, 1));
    case KEY_SPLIT:
        return is_number_of(key, *CONST_FIELD(double, key, base, 2));
    default:
        return true;
    }
}

const char *value_type_name(enum key_type type)
{
    return types[type].name;
}
