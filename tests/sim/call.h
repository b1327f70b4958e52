/* How every call of the CUDA runtime begins and ends. */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#include "stream.h"

#include <cuda_runtime_api.h>

namespace sim
{

/* What a call may not do while a stream captures. */
enum class call_kind {
    plain,
    blocking, /* the host waits, or CUDA may let it wait */
    memory,   /* memory management: not while this thread captures */
};

/* With the lock held: the error that the call shall return at once, cudaSuccess to go on. */
cudaError_t call_begins(const char *name, call_kind kind);

/* Remembers an error for cudaGetLastError, and returns it. */
cudaError_t call_ends(cudaError_t error);

template <typename Body> cudaError_t call(const char *name, call_kind kind, Body body)
{
    std::lock_guard<std::mutex> guard(lock);
    cudaError_t error = call_begins(name, kind);
    return call_ends(error ? error : body());
}

/* Whether this process is a fork of one that has used CUDA, in which nothing works. */
bool is_forked();

/* Calls are counted: a host that makes none for a while has left its devices to themselves. */
void note_call();
uint64_t calls_noted();

int current_device();

/* The stream of a handle, the default stream for NULL; NULL when there is no such stream. */
stream *find_stream(cudaStream_t handle);

} // namespace sim

#endif
