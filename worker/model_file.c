#include "worker/model_file.h"

#include <stdlib.h>

#include "worker/safetensors.h"

int model_file_lay_out(struct model_file *file, const struct model *model, enum dtype wide_type, struct error *error)
{
    const struct tensor_table *tables[] = {&model->table, &model->zeros};
    size_t count = tables[0]->count + tables[1]->count, at = 0;
    *file = (struct model_file){0};
    struct safetensors_tensor *entries = calloc(count, sizeof *entries);
    if (!entries) return error_set(error, STATUS_INTERNAL, "out of memory for %zu tensors", count);
    for (size_t table = 0; table < 2; table++)
        for (size_t i = 0; i < tables[table]->count; i++) {
            const struct tensor *tensor = &tables[table]->tensors[i];
            struct safetensors_tensor *entry = &entries[at++];
            entry->name = tensor->name;
            entry->type = safetensors_type_of(wide_type);
            entry->dimensions = tensor->dimensions;
            entry->shape = tensor->shape;
        }
    int result = safetensors_header(entries, count, &file->header, &file->header_bytes, error);
    file->zeros_at = file->header_bytes + tables[0]->parameters * dtype_size(wide_type);
    file->bytes = file->header_bytes;
    for (size_t i = 0; i < count && !result; i++) file->bytes += entries[i].bytes;
    free(entries);
    return result;
}

void model_file_close(struct model_file *file)
{
    free(file->header);
    *file = (struct model_file){0};
}
