/* Any bytes as a safetensors file: refused with a text, or tensors that fill it without gaps and whose values can be
 * read, all but those of types without any. */
#include <string.h>

#include "memory_file.h"
#include "worker/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { VALUES = 1024 };

static void read_values(struct safetensors *file, const struct safetensors_tensor *tensor)
{
    static double values[VALUES];
    struct error error = {0};
    const uint64_t count = tensor->elements < VALUES ? tensor->elements : VALUES, last = tensor->elements - count;
    const int first = safetensors_read(file, tensor, 0, count, values, &error);
    if (tensor->type == SAFETENSORS_OTHER ? first != -STATUS_DATA : first != 0) abort();
    if (tensor->type == SAFETENSORS_OTHER) return;
    if (safetensors_read(file, tensor, last, count, values, &error) != 0) abort();
    if (safetensors_read(file, tensor, last, count + 1, values, &error) != -STATUS_DATA) abort();
    if (safetensors_read(file, tensor, UINT64_MAX, 1, values, &error) != -STATUS_DATA) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[32];
    struct safetensors *file;
    struct error error = {0};
    int descriptor = memory_file(bytes, size, path);
    int status = safetensors_open(&file, path, &error);
    close(descriptor);
    if (status) {
        if (error.text[0] == '\0' || file || status != -STATUS_DATA) abort();
        return 0;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_tensor *tensor = safetensors_at(file, i);
        if (tensor->offset != end || tensor->bytes > size || safetensors_find(file, tensor->name) != tensor) abort();
        end += tensor->bytes;
        read_values(file, tensor);
    }
    if (end > size) abort();
    safetensors_close(file);
    return 0;
}
