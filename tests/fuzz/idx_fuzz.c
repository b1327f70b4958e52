/* Any bytes as idx files, of images, of labels or of both: refused with a text, or every image can be read and located,
 * and its label is one. */
#include <math.h>

#include "memory_file.h"
#include "worker/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_as(const struct data_shape *shape, double fraction, char part, char *images, char *labels)
{
    Gacc__V1__DataSection spec = GACC__V1__DATA_SECTION__INIT;
    struct data *data;
    struct error error = {0};
    spec.format = GACC__V1__DATA_FORMAT__FORMAT_IDX;
    spec.n_train = spec.n_labels = 1;
    spec.train = &images;
    spec.labels = &labels;
    spec.validation_fraction = fraction;
    if (data_open(&data, &spec, part, shape, &error) < 0) {
        if (error.text[0] == '\0' || data) abort();
        return;
    }
    if (!data) return;
    struct micro_batch *batch;
    if (micro_batch_open(&batch, shape, data_sequences(data), &error) < 0) abort();
    for (uint64_t i = 0; i < data_sequences(data); i++) {
        const char *where;
        uint64_t offset;
        if (data_read(data, i, batch, &error) < 0) abort();
        data_locate(data, i, &where, &offset);
        if (where != images || offset < 8) abort();
        if (shape->classes && (batch->targets[i] < 0 || (uint32_t)batch->targets[i] >= shape->classes)) abort();
    }
    for (size_t i = 0; i < batch->rows * shape->inputs; i++)
        if (!isfinite(batch->x[i])) abort();
    micro_batch_close(batch);
    data_close(data);
}

/* The first byte chooses model, part and fraction, the second one where the labels begin; nowhere: the images label
 * themselves. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct data_shape shapes[] = {{.inputs = 4, .outputs = 1, .classes = 3}, {.inputs = 2, .outputs = 2}};
    if (size < 2) return 0;
    const size_t rest = size - 2, cut = bytes[1] < rest ? bytes[1] : rest;
    char images[32], labels[32];
    const int image_file = memory_file(bytes + 2, cut, images);
    const int label_file =
        memory_file(cut < rest ? bytes + 2 + cut : bytes + 2, cut < rest ? rest - cut : rest, labels);
    read_as(&shapes[bytes[0] & 1], (bytes[0] >> 3) / 32.0, bytes[0] & 4 ? 'v' : 't', images, labels);
    close(image_file);
    close(label_file);
    return 0;
}
