/* Parameters are frozen inside a window: a checksum per tensor, taken before the first forward and compared before the
 * update. */
#include <inttypes.h>

#include "worker/session_internal.h"

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t checksum(const unsigned char *bytes, uint64_t count)
{
    uint64_t sum = UINT64_C(14695981039346656037);
    for (uint64_t i = 0; i < count; i++) sum = (sum ^ bytes[i]) * UINT64_C(1099511628211);
    return sum;
}

static uint64_t tensor_checksum(const struct session *session, const struct tensor *tensor)
{
    return checksum(element(session->parameters, tensor->begin, session->compute_type),
                    tensor->size * dtype_size(session->compute_type));
}

static uint64_t master_checksum(const struct session *session)
{
    return checksum(session->master, session->owned * dtype_size(session->wide_type));
}

void self_check_remember(struct session *session)
{
    const struct tensor_table *table = &session->model->table;
    for (size_t i = 0; i < table->count; i++) session->checksums[i] = tensor_checksum(session, &table->tensors[i]);
    session->checksums[table->count] = master_checksum(session);
}

int self_check_compare(const struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    for (size_t i = 0; i < table->count; i++)
        if (session->checksums[i] != tensor_checksum(session, &table->tensors[i]))
            return error_set(error, STATUS_INTERNAL,
                             "step %" PRIu64 ": tensor %s changed inside the accumulation window",
                             session->machine.step, table->tensors[i].name);
    if (session->checksums[table->count] != master_checksum(session))
        return error_set(error, STATUS_INTERNAL,
                         "step %" PRIu64 ": the master parameters changed inside the accumulation window",
                         session->machine.step);
    return 0;
}
