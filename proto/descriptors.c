#include "proto/descriptors.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/descriptor/descriptor.pb-c.h"

__asm__(".pushsection .rodata\n"
        "gacc_served_begin: .incbin \"" SERVED_DESCRIPTORS "\"\n"
        "gacc_served_end:\n"
        ".popsection\n");
extern const uint8_t gacc_served_begin[], gacc_served_end[];

struct descriptors {
    Gacc__Descriptor__Set *set;
    size_t count;
    Gacc__Descriptor__File *files[]; /* [count] */
};

int descriptors_open(struct descriptors **out, struct error *error)
{
    *out = NULL;
    Gacc__Descriptor__Set *set =
        gacc__descriptor__set__unpack(NULL, (size_t)(gacc_served_end - gacc_served_begin), gacc_served_begin);
    struct descriptors *descriptors = set ? calloc(1, sizeof *descriptors + set->n_file * sizeof(void *)) : NULL;
    if (descriptors == NULL) {
        if (set) gacc__descriptor__set__free_unpacked(set, NULL);
        return error_set(error, STATUS_INTERNAL, "out of memory for the descriptors");
    }
    descriptors->set = set;
    for (; descriptors->count < set->n_file; descriptors->count++) {
        const ProtobufCBinaryData *bytes = &set->file[descriptors->count];
        descriptors->files[descriptors->count] = gacc__descriptor__file__unpack(NULL, bytes->len, bytes->data);
        if (descriptors->files[descriptors->count] != NULL) continue;
        descriptors_close(descriptors);
        return error_set(error, STATUS_INTERNAL, "out of memory for the descriptors");
    }
    *out = descriptors;
    return 0;
}

void descriptors_close(struct descriptors *descriptors)
{
    if (descriptors == NULL) return;
    for (size_t i = 0; i < descriptors->count; i++) gacc__descriptor__file__free_unpacked(descriptors->files[i], NULL);
    gacc__descriptor__set__free_unpacked(descriptors->set, NULL);
    free(descriptors);
}

size_t descriptors_count(const struct descriptors *descriptors)
{
    return descriptors->count;
}

int descriptors_find_file(const struct descriptors *descriptors, const char *name)
{
    for (size_t i = 0; i < descriptors->count; i++)
        if (strcmp(descriptors->files[i]->name, name) == 0) return (int)i;
    return -1;
}

/* What is left of `symbol` behind "name." or "name"; NULL: it does not begin so. An empty name is no step. */
static const char *step_into(const char *symbol, const char *name)
{
    const size_t length = strlen(name);
    if (length == 0) return symbol;
    if (strncmp(symbol, name, length) != 0) return NULL;
    return symbol[length] == '.' ? symbol + length + 1 : symbol[length] == '\0' ? symbol + length : NULL;
}

static bool has_name(Gacc__Descriptor__Named **names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i]->name, name) == 0) return true;
    return false;
}

static bool type_has(const Gacc__Descriptor__Type *type, const char *rest, bool message)
{
    if (*rest == '\0') return true;
    for (size_t i = 0; i < type->n_nested_type; i++) {
        const Gacc__Descriptor__Inner *inner = type->nested_type[i];
        const char *last = step_into(rest, inner->name);
        if (last && (*last == '\0' || (!message && has_name(inner->field, inner->n_field, last)))) return true;
    }
    return !message &&
           (has_name(type->field, type->n_field, rest) || has_name(type->enum_type, type->n_enum_type, rest) ||
            has_name(type->oneof_decl, type->n_oneof_decl, rest));
}

static bool file_has(const Gacc__Descriptor__File *file, const char *symbol, bool message)
{
    const char *rest = step_into(symbol, file->package);
    if (rest == NULL || *rest == '\0' || symbol[strlen(symbol) - 1] == '.') return false;
    for (size_t i = 0; i < file->n_message_type; i++) {
        const char *inside = step_into(rest, file->message_type[i]->name);
        if (inside && type_has(file->message_type[i], inside, message)) return true;
    }
    if (message) return false;
    for (size_t i = 0; i < file->n_service; i++) {
        const Gacc__Descriptor__Service *service = file->service[i];
        const char *method = step_into(rest, service->name);
        if (method && (*method == '\0' || has_name(service->method, service->n_method, method))) return true;
    }
    return has_name(file->enum_type, file->n_enum_type, rest);
}

static int find(const struct descriptors *descriptors, const char *symbol, bool message)
{
    for (size_t i = 0; i < descriptors->count; i++)
        if (file_has(descriptors->files[i], symbol, message)) return (int)i;
    return -1;
}

int descriptors_find_symbol(const struct descriptors *descriptors, const char *symbol)
{
    return find(descriptors, symbol, false);
}

int descriptors_find_message(const struct descriptors *descriptors, const char *symbol)
{
    return find(descriptors, symbol, true);
}

/* Adds the file, then what it imports and has not been added. */
static size_t add_with_imports(const struct descriptors *descriptors, int file, ProtobufCBinaryData *files,
                               size_t count)
{
    const ProtobufCBinaryData bytes = descriptors->set->file[file];
    for (size_t i = 0; i < count; i++)
        if (files[i].data == bytes.data) return count;
    files[count++] = bytes;
    const Gacc__Descriptor__File *parsed = descriptors->files[file];
    for (size_t i = 0; i < parsed->n_dependency; i++)
        count = add_with_imports(descriptors, descriptors_find_file(descriptors, parsed->dependency[i]), files, count);
    return count;
}

size_t descriptors_closure(const struct descriptors *descriptors, int file, ProtobufCBinaryData *files)
{
    return add_with_imports(descriptors, file, files, 0); /* --include_imports: every import is there */
}
