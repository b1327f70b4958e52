/* The CUDA runtime: streams, events, graphs, launches. */
#include "call.h"
#include "graph.h"
#include "kernel.h"
#include "memory.h"
#include "settings.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

using namespace sim;

namespace
{

/* Objects that the program holds by handle; operations in flight share events and graphs. */
struct handles {
    std::map<cudaEvent_t, std::shared_ptr<event>> events;
    std::map<cudaGraph_t, std::unique_ptr<graph>> graphs;
    std::map<cudaGraphExec_t, std::shared_ptr<executable_graph>> executables;
};

handles &known()
{
    static auto *const all = new handles();
    return *all;
}

std::shared_ptr<event> find_event(cudaEvent_t handle)
{
    auto found = known().events.find(handle);
    return found == known().events.end() ? nullptr : found->second;
}

cudaError_t create_event(cudaEvent_t *handle, unsigned flags)
{
    auto created = std::make_shared<event>();
    created->device = current_device();
    created->flags = flags;
    *handle = reinterpret_cast<cudaEvent_t>(created.get());
    known().events[*handle] = std::move(created);
    return cudaSuccess;
}

cudaError_t create_stream(cudaStream_t *handle, unsigned flags, int priority)
{
    if (flags & ~unsigned(cudaStreamNonBlocking)) return cudaErrorInvalidValue;
    *handle = reinterpret_cast<cudaStream_t>(stream_create(current_device(), flags, priority));
    return cudaSuccess;
}

/* An operation of this stream may be enqueued. */
cudaError_t check_stream(const stream *stream)
{
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->legacy)
        if (cudaError_t error = capture_spoil_of_device(stream->device, cudaErrorStreamCaptureImplicit)) return error;
    return capture_state(*stream);
}

cudaError_t record_event(cudaEvent_t event_handle, cudaStream_t stream_handle)
{
    auto event = find_event(event_handle);
    stream *stream = find_stream(stream_handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (cudaError_t error = check_stream(stream)) return error;
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    if (stream->capturing)
        capture_record(event, *stream);
    else
        record(event, *stream);
    return cudaSuccess;
}

cudaError_t wait_event(cudaStream_t stream_handle, cudaEvent_t event_handle)
{
    auto event = find_event(event_handle);
    stream *stream = find_stream(stream_handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (cudaError_t error = check_stream(stream)) return error;
    if (stream->capturing || event->captured_in) return capture_wait(*stream, event);
    wait_for(*stream, event);
    return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t *handle, cudaGraph_t graph_handle)
{
    auto found = known().graphs.find(graph_handle);
    if (found == known().graphs.end()) return cudaErrorInvalidValue;
    auto created = std::make_shared<executable_graph>();
    created->nodes = *found->second;
    *handle = reinterpret_cast<cudaGraphExec_t>(created.get());
    known().executables[*handle] = std::move(created);
    return cudaSuccess;
}

} // namespace

/* --- streams ------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
    return call(__func__, call_kind::plain, [=] { return create_stream(handle, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
    return call(__func__, call_kind::plain, [=] { return create_stream(handle, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority)
{
    return call(__func__, call_kind::plain, [=] { return create_stream(handle, flags, priority); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (!stream || stream->legacy) return cudaErrorInvalidResourceHandle;
        if (stream->capturing) return capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        stream_destroy(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    const void *caller = __builtin_return_address(0);
    return call(__func__, call_kind::blocking, [=] {
        trace_caller("cudaStreamSynchronize called from", caller);
        stream *stream = find_stream(handle);
        if (cudaError_t error = check_stream(stream)) return error;
        if (stream->capturing) return capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        if (!dropped("cudaStreamSynchronize", caller)) run_stream(*stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (cudaError_t error = check_stream(stream)) return error;
        if (stream->capturing) return capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        if (stream->queue.empty()) return cudaSuccess;
        device_access access;
        run_one();
        return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
    const void *caller = __builtin_return_address(0);
    return call(__func__, call_kind::plain, [=] {
        trace_caller("cudaStreamWaitEvent called from", caller);
        return dropped("cudaStreamWaitEvent", caller) ? cudaSuccess : wait_event(handle, event);
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    return call(__func__, call_kind::plain, [=] {
        const stream *stream = find_stream(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *priority = stream->priority;
        return cudaSuccess;
    });
}

/* --- events -------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreate(cudaEvent_t *handle)
{
    return call(__func__, call_kind::plain, [=] { return create_event(handle, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags)
{
    return call(__func__, call_kind::plain, [=] { return create_event(handle, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    return call(__func__, call_kind::plain,
                [=] { return known().events.erase(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return call(__func__, call_kind::plain, [=] { return record_event(event, stream); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    const void *caller = __builtin_return_address(0);
    return call(__func__, call_kind::blocking, [=] {
        trace_caller("cudaEventSynchronize called from", caller);
        auto event = find_event(handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        if (event->captured_in) return cudaErrorCapturedEvent;
        uint64_t recorded = event->recorded;
        if (!dropped("cudaEventSynchronize", caller)) run_until([=] { return event->done >= recorded; });
        return cudaSuccess;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        auto event = find_event(handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        if (event->captured_in) return cudaErrorCapturedEvent;
        if (event->done >= event->recorded) return cudaSuccess;
        device_access access;
        run_one();
        return event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from_handle, cudaEvent_t to_handle)
{
    return call(__func__, call_kind::plain, [=] {
        auto from = find_event(from_handle), to = find_event(to_handle);
        if (!from || !to || !from->recorded || !to->recorded || (from->flags | to->flags) & cudaEventDisableTiming)
            return cudaErrorInvalidResourceHandle;
        if (from->done < from->recorded || to->done < to->recorded) return cudaErrorNotReady;
        *milliseconds = float((to->seconds - from->seconds) * 1e3); // of the simulation: says nothing about a device
        return cudaSuccess;
    });
}

/* --- graphs -------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        return stream ? capture_begin(*stream, mode) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph_handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *graph_handle = nullptr;
        std::unique_ptr<graph> captured;
        if (cudaError_t error = capture_end(*stream, &captured)) return error;
        *graph_handle = reinterpret_cast<cudaGraph_t>(captured.get());
        known().graphs[*graph_handle] = std::move(captured);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
    return call(__func__, call_kind::plain, [=] {
        const stream *stream = find_stream(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *status = !stream->capturing               ? cudaStreamCaptureStatusNone
                  : stream->capturing->invalidated ? cudaStreamCaptureStatusInvalidated
                                                   : cudaStreamCaptureStatusActive;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *handle, cudaGraph_t graph, unsigned long long)
{
    return call(__func__, call_kind::plain, [=] { return instantiate(handle, graph); });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *handle, cudaGraph_t graph, unsigned long long)
{
    return call(__func__, call_kind::plain, [=] { return instantiate(handle, graph); });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream)
{
    return call(__func__, call_kind::plain, [=] {
        return known().executables.count(handle) && find_stream(stream) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    return call(__func__, call_kind::plain, [=] {
        auto found = known().executables.find(handle);
        stream *stream = find_stream(stream_handle);
        if (found == known().executables.end()) return cudaErrorInvalidValue;
        if (cudaError_t error = check_stream(stream)) return error;
        if (stream->capturing)
            return explain("a graph in a graph is not simulated"),
                   capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        launch_graph(*stream, found->second);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    return call(__func__, call_kind::plain,
                [=] { return known().executables.erase(handle) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    return call(__func__, call_kind::plain,
                [=] { return known().graphs.erase(handle) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    return call(__func__, call_kind::plain, [=] {
        auto found = known().graphs.find(handle);
        if (found == known().graphs.end() || nodes) return cudaErrorInvalidValue; // their number only
        *count = found->second->nodes.size();
        return cudaSuccess;
    });
}

/* --- launches ------------------------------------------------------------------------------------------------ */

cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t shared_bytes,
                             cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (cudaError_t error = check_stream(stream)) return error;
        if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
        return enqueue_kernel(*stream, kernel, blocks, threads, arguments, shared_bytes);
    });
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    return call(__func__, call_kind::plain, [=] {
        if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) return allow_shared(kernel, value);
        return attribute == cudaFuncAttributePreferredSharedMemoryCarveout ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    return call(__func__, call_kind::plain, [=] {
        memset(attributes, 0, sizeof *attributes);
        attributes->maxThreadsPerBlock = int(max_threads_per_block);
        attributes->maxDynamicSharedSizeBytes = allowed_shared(kernel);
        attributes->binaryVersion = attributes->ptxVersion = 90;
        return cudaSuccess;
    });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                          size_t shared_bytes)
{
    return call(__func__, call_kind::plain, [=] {
        if (threads <= 0 || unsigned(threads) > max_threads_per_block) return cudaErrorInvalidValue;
        unsigned by_threads = std::min(threads_per_multiprocessor / unsigned(threads), blocks_per_multiprocessor);
        size_t by_shared = shared_per_multiprocessor / (shared_bytes + 1024); // 1 KiB is the system's, in each block
        *blocks = shared_bytes > size_t(allowed_shared(kernel)) ? 0 : int(std::min<size_t>(by_threads, by_shared));
        return cudaSuccess;
    });
}
