/* The session's buffers as the host reads them: for export, checks, and whoever looks on. Training itself reads none.
 */
#include <stdlib.h>

#include "worker/device.h"
#include "worker/memory.h"
#include "worker/session_internal.h"

static const char *const buffer_names[BUFFERS] = {
    [BUFFER_PARAMETERS] = "parameters", [BUFFER_FROZEN] = "frozen parameters", [BUFFER_GRADIENTS] = "gradients",
    [BUFFER_SHARD] = "gradient shard",  [BUFFER_MASTER] = "master parameters", [BUFFER_M] = "first moments",
    [BUFFER_V] = "second moments",
};

static const void *buffer_at(const struct session *session, enum buffer which)
{
    const void *const buffers[BUFFERS] = {
        [BUFFER_PARAMETERS] = session->parameters, [BUFFER_FROZEN] = session->frozen,
        [BUFFER_GRADIENTS] = session->gradients,   [BUFFER_SHARD] = session->shard,
        [BUFFER_MASTER] = session->master,         [BUFFER_M] = session->optimizer.m,
        [BUFFER_V] = session->optimizer.v,
    };
    return buffers[which];
}

static uint64_t buffer_bytes(const struct session *session, enum buffer which)
{
    const struct tensor_table *table = &session->model->table;
    if (which == BUFFER_PARAMETERS) return table->trained * dtype_size(session->compute_type);
    if (which == BUFFER_FROZEN) return (table->parameters - table->trained) * dtype_size(session->compute_type);
    uint64_t elements = session->owned;
    if (which == BUFFER_GRADIENTS) elements = table->trained;
    if (which == BUFFER_MASTER) elements = session->kept;
    if (which == BUFFER_M) elements = session->optimizer.count.m;
    if (which == BUFFER_V) elements = session->optimizer.count.v;
    return elements * dtype_size(session->wide_type);
}

int session_read(struct session *session, enum buffer which, const void **out, struct error *error)
{
    const struct kernel_table *table = session->kernels->table;
    const void *buffer = *out = buffer_at(session, which);
    int result = overlap_settle(session, error);
    if (result || table->on_host || !buffer) return result;
    uint64_t bytes = buffer_bytes(session, which);
    if (!session->copies[which]) {
        char what[64];
        snprintf(what, sizeof what, "the host's copy of the %s", buffer_names[which]);
        result = memory_new(&session->copies[which], bytes, 1, what, error);
        if (result) return result;
    }
    *out = session->copies[which];
    return device_download(session->kernels, session->copies[which], buffer, bytes, error);
}

int session_look(struct session *session, struct session_view *view, struct error *error)
{
    *view = (struct session_view){
        .rank = session->comm->rank,
        .compute_type = session->compute_type,
        .wide_type = session->wide_type,
        .table = &session->model->table,
        .map = &session->map,
        .owned = session->owned,
        .kept = session->kept,
        .m_count = session->optimizer.count.m,
        .v_count = session->optimizer.count.v,
    };
    const void **const seen[BUFFERS] = {
        [BUFFER_PARAMETERS] = &view->parameters,
        [BUFFER_FROZEN] = &view->frozen,
        [BUFFER_GRADIENTS] = &view->gradients,
        [BUFFER_SHARD] = &view->shard,
        [BUFFER_MASTER] = &view->master,
        [BUFFER_M] = &view->m,
        [BUFFER_V] = &view->v,
    };
    int result = 0;
    for (enum buffer which = 0; which < BUFFERS && !result; which++)
        result = session_read(session, which, seen[which], error);
    return result;
}
