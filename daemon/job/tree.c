#include "daemon/job/tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t yaml;
    const struct source *source;
    const char *text;
    size_t length;
    struct error *error;
    char path[256]; /* of the key that is being read; cut when it is longer */
};

__attribute__((format(printf, 6, 0))) static int fail_at(const struct source *source, unsigned line, unsigned column,
                                                         const char *path, struct error *error, const char *format,
                                                         va_list arguments)
{
    char why[768];
    vsnprintf(why, sizeof why, format, arguments);
    if (!source->set)
        return error_set(error, STATUS_JOB, "%s:%u:%u: %s%s%s", source->file, line, column, path ? path : "",
                         path ? ": " : "", why);
    bool same = !path || strcmp(path, source->set) == 0;
    return error_set(error, STATUS_JOB, "--set %s: %s%s%s", source->set, same ? "" : path, same ? "" : ": ", why);
}

int node_fail(const struct node *node, const char *path, struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = fail_at(node->source, node->line, node->column, path, error, format, arguments);
    va_end(arguments);
    return status;
}

int node_fail_key(const struct node *node, const char *path, struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = fail_at(node->source, node->key_line, node->key_column, path, error, format, arguments);
    va_end(arguments);
    return status;
}

__attribute__((format(printf, 3, 4))) static int mark_fail(struct reader *reader, yaml_mark_t mark, const char *format,
                                                           ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = fail_at(reader->source, (unsigned)mark.line + 1, (unsigned)mark.column + 1,
                         *reader->path ? reader->path : NULL, reader->error, format, arguments);
    va_end(arguments);
    return status;
}

/* Whether line `line` (from 0) is indented with a tab: libyaml's own words for that help nobody. */
static bool indented_by_tab(const struct reader *reader, size_t line)
{
    const char *at = reader->text, *end = reader->text + reader->length;
    for (; line > 0 && at < end; line--) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline ? newline + 1 : end;
    }
    while (at < end && *at == ' ') at++;
    return at < end && *at == '\t';
}

static int syntax_fail(struct reader *reader)
{
    const yaml_parser_t *yaml = &reader->yaml;
    if (yaml->error == YAML_MEMORY_ERROR) return error_set(reader->error, STATUS_INTERNAL, "out of memory");
    reader->path[0] = '\0'; /* where libyaml gave up need not be where the fault is */
    if (indented_by_tab(reader, yaml->problem_mark.line))
        return mark_fail(reader, yaml->problem_mark, "a tab; YAML indents with spaces");
    const char *problem = yaml->problem ? yaml->problem : "cannot be read";
    if (!yaml->context) return mark_fail(reader, yaml->problem_mark, "not YAML: %s", problem);
    return mark_fail(reader, yaml->problem_mark, "not YAML: %s %s%s", problem, yaml->context,
                     strstr(yaml->context, "alias") ? " (put a text that begins with * in quotes)" : "");
}

static int next_event(struct reader *reader, yaml_event_t *event)
{
    return yaml_parser_parse(&reader->yaml, event) ? 0 : syntax_fail(reader);
}

static struct node *node_new(enum node_kind kind, yaml_mark_t mark, const struct source *source)
{
    struct node *node = calloc(1, sizeof *node);
    if (!node) return NULL;
    node->kind = kind;
    node->line = node->key_line = (unsigned)mark.line + 1;
    node->column = node->key_column = (unsigned)mark.column + 1;
    node->source = source;
    return node;
}

static void append(struct node *parent, struct node *child)
{
    *(parent->last ? &parent->last->next : &parent->children) = child;
    parent->last = child;
}

/* The scalar's text, refused when it holds a NUL, which no C string can. */
static int take_scalar(struct reader *reader, const yaml_event_t *event, char **out)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, '\0', length)) return mark_fail(reader, event->start_mark, "holds a NUL character");
    *out = strndup(value, length);
    return *out ? 0 : error_set(reader->error, STATUS_INTERNAL, "out of memory");
}

static int refuse_decoration(struct reader *reader, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return mark_fail(reader, event->start_mark,
                         "*%s is an alias; aliases are refused (put a text that begins with * in quotes)",
                         (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor)
        return mark_fail(reader, event->start_mark, "&%s is an anchor; anchors are refused", (const char *)anchor);
    if (tag) return mark_fail(reader, event->start_mark, "%s is a tag; tags are refused", (const char *)tag);
    return 0;
}

static int build(struct reader *reader, const yaml_event_t *event, int depth, struct node **out);

static int build_list(struct reader *reader, struct node *list, int depth)
{
    for (;;) {
        yaml_event_t event;
        int status = next_event(reader, &event);
        if (status) return status;
        struct node *child = NULL;
        bool end = event.type == YAML_SEQUENCE_END_EVENT;
        if (!end) status = build(reader, &event, depth + 1, &child);
        yaml_event_delete(&event);
        if (end || status) return status;
        append(list, child);
    }
}

/* Puts a key behind the path, and says where to cut it off again. */
static size_t enter(struct reader *reader, const char *key)
{
    size_t length = strlen(reader->path);
    snprintf(reader->path + length, sizeof reader->path - length, "%s%s", length ? "." : "", key);
    return length;
}

static int check_key(struct reader *reader, const struct node *mapping, const yaml_event_t *event)
{
    int status = refuse_decoration(reader, event);
    if (status) return status;
    if (event->type != YAML_SCALAR_EVENT)
        return mark_fail(reader, event->start_mark, "a key must be a word, not a list or a mapping");
    const char *key = (const char *)event->data.scalar.value;
    size_t count = 0;
    for (const struct node *child = mapping->children; child; child = child->next, count++) {
        if (strcmp(child->key, key) != 0) continue;
        enter(reader, key);
        return mark_fail(reader, event->start_mark, "is given twice, first in line %u", child->key_line);
    }
    if (count >= TREE_KEYS_LIMIT)
        return mark_fail(reader, event->start_mark, "a mapping of more than %d keys", TREE_KEYS_LIMIT);
    return 0;
}

static int build_entry(struct reader *reader, struct node *mapping, const yaml_event_t *key_event, int depth)
{
    int status = check_key(reader, mapping, key_event);
    char *key = NULL;
    if (!status) status = take_scalar(reader, key_event, &key);
    if (status) return status;
    yaml_event_t event;
    struct node *child = NULL;
    size_t outside = enter(reader, key);
    status = next_event(reader, &event);
    if (!status) {
        status = build(reader, &event, depth + 1, &child);
        yaml_event_delete(&event);
    }
    reader->path[outside] = '\0';
    if (status) {
        free(key);
        return status;
    }
    child->key = key;
    child->key_line = (unsigned)key_event->start_mark.line + 1;
    child->key_column = (unsigned)key_event->start_mark.column + 1;
    append(mapping, child);
    return 0;
}

static int build_mapping(struct reader *reader, struct node *mapping, int depth)
{
    for (;;) {
        yaml_event_t event;
        int status = next_event(reader, &event);
        if (status) return status;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end) status = build_entry(reader, mapping, &event, depth);
        yaml_event_delete(&event);
        if (end || status) return status;
    }
}

static int build(struct reader *reader, const yaml_event_t *event, int depth, struct node **out)
{
    int status = refuse_decoration(reader, event);
    if (status) return status;
    if (depth > TREE_DEPTH_LIMIT)
        return mark_fail(reader, event->start_mark, "nested deeper than %d levels", TREE_DEPTH_LIMIT);
    enum node_kind kind = event->type == YAML_SCALAR_EVENT           ? NODE_SCALAR
                          : event->type == YAML_SEQUENCE_START_EVENT ? NODE_LIST
                                                                     : NODE_MAPPING;
    struct node *node = node_new(kind, event->start_mark, reader->source);
    if (!node) return error_set(reader->error, STATUS_INTERNAL, "out of memory");
    if (kind == NODE_SCALAR) {
        node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        status = take_scalar(reader, event, &node->text);
    } else {
        status = kind == NODE_LIST ? build_list(reader, node, depth) : build_mapping(reader, node, depth);
    }
    if (status) {
        tree_free(node);
        return status;
    }
    *out = node;
    return 0;
}

/* Stream start, at most one document, stream end. */
static int read_stream(struct reader *reader, struct node **out)
{
    bool seen = false;
    for (;;) {
        yaml_event_t event;
        int status = next_event(reader, &event);
        if (status) return status;
        yaml_event_type_t type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT && seen)
            status = mark_fail(reader, event.start_mark, "a second document; a job is one");
        if (type == YAML_DOCUMENT_START_EVENT) seen = true;
        bool content = type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT ||
                       type == YAML_MAPPING_START_EVENT || type == YAML_ALIAS_EVENT;
        if (!status && content) status = build(reader, &event, 0, out);
        yaml_event_delete(&event);
        if (status || type == YAML_STREAM_END_EVENT) return status;
    }
}

int tree_parse(struct node **out, const char *text, size_t length, const struct source *source, struct error *error)
{
    static const char mark[] = "\xef\xbb\xbf";
    *out = NULL;
    if (length >= 3 && memcmp(text, mark, 3) == 0) text += 3, length -= 3;
    struct reader reader = {.source = source, .text = text, .length = length, .error = error};
    if (source->set) enter(&reader, source->set);
    if (!yaml_parser_initialize(&reader.yaml)) return error_set(error, STATUS_INTERNAL, "out of memory");
    yaml_parser_set_encoding(&reader.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.yaml, (const unsigned char *)text, length);
    int status = read_stream(&reader, out);
    yaml_parser_delete(&reader.yaml);
    if (status) {
        tree_free(*out);
        *out = NULL;
    }
    return status;
}

void tree_free(struct node *node)
{
    while (node) {
        struct node *next = node->next;
        tree_free(node->children); /* as deep as TREE_DEPTH_LIMIT lets it be */
        free(node->key);
        free(node->text);
        free(node);
        node = next;
    }
}

static bool is_index(const char *text, size_t length, size_t *index)
{
    *index = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *index = *index * 10 + (size_t)(text[i] - '0');
    }
    return length > 0 && length <= 6 && (length == 1 || text[0] != '0');
}

struct node *tree_child(const struct node *parent, const char *key, size_t length)
{
    size_t index = 0;
    if (parent->kind == NODE_LIST && !is_index(key, length, &index)) return NULL;
    for (struct node *child = parent->children; child; child = child->next) {
        if (parent->kind == NODE_LIST ? index-- == 0 : strncmp(child->key, key, length) == 0 && !child->key[length])
            return child;
    }
    return NULL;
}

struct node *tree_find(struct node *root, const char *path)
{
    struct node *node = root;
    while (node && *path) {
        size_t length = strcspn(path, ".");
        node = tree_child(node, path, length);
        path += length + (path[length] == '.');
    }
    return node;
}

static void unlink_child(struct node *parent, struct node *child)
{
    struct node *before = NULL;
    for (struct node *at = parent->children; at != child; at = at->next) before = at;
    *(before ? &before->next : &parent->children) = child->next;
    if (parent->last == child) parent->last = before;
    child->next = NULL;
}

void tree_remove(struct node *root, const char *path)
{
    struct node *parent = root;
    const char *dot = strrchr(path, '.');
    if (dot) {
        char *above = strndup(path, (size_t)(dot - path));
        parent = above ? tree_find(root, above) : NULL;
        free(above);
    }
    struct node *child = parent ? tree_child(parent, dot ? dot + 1 : path, strlen(dot ? dot + 1 : path)) : NULL;
    if (!child) return;
    unlink_child(parent, child);
    tree_free(child);
}

/* In place of the child that is there, or after the last. */
static int put_child(struct node *parent, const char *key, size_t length, struct node *value, struct error *error)
{
    struct node *old = tree_child(parent, key, length);
    if (parent->kind == NODE_LIST) {
        size_t index, count = 0;
        for (const struct node *child = parent->children; child; child = child->next) count++;
        if (!is_index(key, length, &index))
            return node_fail(value, NULL, error, "no element %.*s: a list's go by their index, from 0", (int)length,
                             key);
        if (index > count)
            return node_fail(value, NULL, error, "no element %.*s: the list has %zu", (int)length, key, count);
    } else {
        value->key = strndup(key, length);
        if (!value->key) return error_set(error, STATUS_INTERNAL, "out of memory");
    }
    if (!old) {
        append(parent, value);
        return 0;
    }
    value->next = old->next;
    struct node **link = &parent->children;
    while (*link != old) link = &(*link)->next;
    *link = value;
    if (parent->last == old) parent->last = value;
    old->next = NULL;
    tree_free(old);
    return 0;
}

/* Of a key that may have dots in it: all that is left, or all but the index behind it where the file has a list. */
static size_t whole_length(const struct node *parent, const char *at)
{
    const char *dot = strrchr(at, '.');
    size_t index;
    if (!dot || !is_index(dot + 1, strlen(dot + 1), &index)) return strlen(at);
    const struct node *child = tree_child(parent, at, (size_t)(dot - at));
    return child && child->kind == NODE_LIST ? (size_t)(dot - at) : strlen(at);
}

int tree_put(struct node *root, const char *path, size_t whole, struct node *value, struct error *error)
{
    struct node *parent = root;
    int depth = 0, status = 0;
    for (const char *at = path; !status; depth++) {
        size_t length = (size_t)(at - path) >= whole ? whole_length(parent, at) : strcspn(at, ".");
        if (length == 0 || depth > TREE_DEPTH_LIMIT / 2) {
            status = node_fail(value, NULL, error, "not a key path");
            break;
        }
        if (parent->kind == NODE_SCALAR) {
            status = node_fail(value, NULL, error, "%.*s holds no keys", (int)(at - path - 1), path);
            break;
        }
        if (!at[length]) {
            status = put_child(parent, at, length, value, error);
            if (!status) return 0;
            break;
        }
        struct node *child = tree_child(parent, at, length);
        if (!child) {
            size_t index;
            const char *below = at + length + 1;
            bool is_list = is_index(below, strcspn(below, "."), &index);
            child = node_new(is_list ? NODE_LIST : NODE_MAPPING, (yaml_mark_t){0}, value->source);
            status = child ? put_child(parent, at, length, child, error)
                           : error_set(error, STATUS_INTERNAL, "out of memory");
            if (status) tree_free(child);
        }
        parent = child;
        at += length + 1;
    }
    tree_free(value);
    return status;
}
