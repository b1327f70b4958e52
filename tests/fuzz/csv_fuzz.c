/* Any bytes as a csv file: refused with a text, or every row can be read and located. */
#include "memory_file.h"
#include "worker/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_as(const struct data_shape *shape, char *path, size_t size)
{
    Gacc__V1__DataSection spec = GACC__V1__DATA_SECTION__INIT;
    struct data *data;
    struct error error = {0};
    spec.format = GACC__V1__DATA_FORMAT__FORMAT_CSV;
    spec.n_train = 1;
    spec.train = &path;
    if (data_open(&data, &spec, 't', shape, &error) < 0) {
        if (error.text[0] == '\0' || data) abort();
        return;
    }
    struct micro_batch *batch;
    if (micro_batch_open(&batch, shape, data_sequences(data), &error) < 0) abort();
    double weight = 0;
    for (uint64_t i = 0; i < data_sequences(data); i++) {
        const char *where;
        uint64_t offset;
        if (data_read(data, i, batch, &error) < 0 || data_weight(data, i) < 0) abort();
        if (shape->classes && (batch->targets[i] < 0 || (uint32_t)batch->targets[i] >= shape->classes)) abort();
        weight += data_weight(data, i);
        data_locate(data, i, &where, &offset);
        if (offset >= size) abort();
    }
    if (batch->weight_sum < weight || batch->weight_sum > weight) abort();
    micro_batch_close(batch);
    data_close(data);
}

/* The first byte chooses the model. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct data_shape shapes[] = {
        {.size = 1}, {.inputs = 2, .outputs = 1}, {.inputs = 1, .outputs = 1, .classes = 3}};
    if (size == 0) return 0;
    char path[32];
    int descriptor = memory_file(bytes + 1, size - 1, path);
    read_as(&shapes[bytes[0] % 3], path, size - 1);
    close(descriptor);
    return 0;
}
