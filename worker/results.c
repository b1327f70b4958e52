#include "worker/results.h"

#include <math.h>
#include <stdlib.h>

#include "worker/device.h"

#define ROOM_AT_FIRST 64

/* The losses stand behind the checks; the first is that of the micro-batch at hand. */
static size_t losses_offset(const struct results *results)
{
    return (results->tensors + 1) * sizeof(struct gradient_check);
}

static size_t all_bytes(const struct results *results)
{
    return losses_offset(results) + ((size_t)results->room + 1) * sizeof(double);
}

static double *losses_in(const struct results *results, void *memory)
{
    return (double *)((char *)memory + losses_offset(results));
}

static void release(struct results *results)
{
    if (results->host != results->device) free(results->host);
    if (results->kernels) results->kernels->table->release(results->kernels, results->device);
    results->host = results->device = NULL;
}

static int make_room(struct results *results, uint32_t losses, struct error *error)
{
    const struct kernel_table *table = results->kernels->table;
    release(results);
    results->room = losses;
    size_t bytes = all_bytes(results);
    struct loss_unit *units = realloc(results->units, losses * sizeof *units);
    if (units) results->units = units;
    results->device = table->allocate(results->kernels, bytes);
    results->host = table->on_host ? results->device : malloc(bytes);
    if (units && results->device && results->host) return 0;
    release(results);
    results->room = 0;
    return error_set(error, STATUS_INTERNAL, "out of memory for the losses of %u micro-batches", losses);
}

int results_open(struct results *results, struct kernels *kernels, size_t tensors, struct error *error)
{
    *results = (struct results){.kernels = kernels, .tensors = tensors};
    return make_room(results, ROOM_AT_FIRST, error);
}

int results_begin(struct results *results, uint32_t losses, struct error *error)
{
    results->losses = 0;
    if (losses > results->room || !results->device) {
        uint32_t doubled = losses < UINT32_MAX / 2 ? 2 * losses : losses;
        return make_room(results, doubled > ROOM_AT_FIRST ? doubled : ROOM_AT_FIRST, error);
    }
    results->kernels->table->clear(results->kernels, results->device, all_bytes(results));
    return 0;
}

void results_close(struct results *results)
{
    release(results);
    free(results->units);
    results->units = NULL;
}

struct gradient_check *results_check(const struct results *results)
{
    return results->device;
}

struct gradient_check *results_tensor_check(const struct results *results, size_t tensor)
{
    return (struct gradient_check *)results->device + 1 + tensor;
}

double *results_loss(const struct results *results)
{
    return losses_in(results, results->device);
}

void results_keep_loss(struct results *results, struct loss_unit unit)
{
    const struct kernel_table *table = results->kernels->table;
    double *loss = results_loss(results);
    results->units[results->losses++] = unit;
    table->copy(results->kernels, loss + results->losses, loss, sizeof *loss);
    table->clear(results->kernels, loss, sizeof *loss);
}

int results_read(struct results *results, struct error *error)
{
    return device_download(results->kernels, results->host, results->device, all_bytes(results), error);
}

struct gradient_check results_check_read(const struct results *results)
{
    return *(const struct gradient_check *)results->host;
}

struct gradient_check results_tensor_check_read(const struct results *results, size_t tensor)
{
    return ((const struct gradient_check *)results->host)[1 + tensor];
}

long double results_loss_sum(const struct results *results, bool means)
{
    const double *losses = losses_in(results, results->host) + 1;
    long double sum = 0;
    for (uint32_t i = 0; i < results->losses; i++) {
        struct loss_unit unit = results->units[i];
        long double loss = ldexpl((long double)losses[i], unit.exponent);
        sum += means ? loss / (long double)unit.weight_sum : loss;
    }
    return sum;
}
