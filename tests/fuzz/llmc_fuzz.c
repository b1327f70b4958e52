/* Any bytes as a token file: refused with a text, or every sequence can be read and holds tokens below vocab. */
#include "memory_file.h"
#include "worker/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { CONTEXT = 3, VOCAB = 200 };

static void read_as(Gacc__V1__DataFormat format, double fraction, char part, char *path)
{
    const struct data_shape shape = {.context = CONTEXT, .vocab = VOCAB};
    Gacc__V1__DataSection spec = GACC__V1__DATA_SECTION__INIT;
    struct data *data;
    struct error error = {0};
    spec.format = format;
    spec.n_train = 1;
    spec.train = &path;
    spec.validation_fraction = fraction;
    if (data_open(&data, &spec, part, &shape, &error) < 0) {
        if (error.text[0] == '\0' || data) abort();
        return;
    }
    if (!data) return;
    struct micro_batch *batch;
    if (micro_batch_open(&batch, &shape, data_sequences(data), &error) < 0) abort();
    for (uint64_t i = 0; i < data_sequences(data); i++)
        if (data_read(data, i, batch, &error) < 0) abort();
    for (size_t i = 0; i < batch->rows * CONTEXT; i++)
        if (batch->tokens[i] < 0 || batch->tokens[i] >= VOCAB || batch->targets[i] < 0 || batch->targets[i] >= VOCAB)
            abort();
    micro_batch_close(batch);
    data_close(data);
}

/* The first byte chooses format, part and fraction. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const Gacc__V1__DataFormat formats[] = {
        GACC__V1__DATA_FORMAT__FORMAT_LLMC, GACC__V1__DATA_FORMAT__FORMAT_BYTES, GACC__V1__DATA_FORMAT__FORMAT_U16,
        GACC__V1__DATA_FORMAT__FORMAT_U32};
    if (size == 0) return 0;
    char path[32];
    int descriptor = memory_file(bytes + 1, size - 1, path);
    read_as(formats[bytes[0] & 3], (bytes[0] >> 3) / 32.0, bytes[0] & 4 ? 'v' : 't', path);
    close(descriptor);
    return 0;
}
