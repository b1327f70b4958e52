/* The CUDA runtime: memory, copies, fills. */
#include "call.h"
#include "graph.h"
#include "memory.h"
#include "settings.h"

#include <cstring>
#include <string>

using namespace sim;

namespace
{

cudaError_t allocate(void **pointer, size_t size)
{
    *pointer = nullptr;
    if (size == 0) return cudaSuccess;
    *pointer = device_allocate(current_device(), size);
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t allocate_pinned(void **pointer, size_t size)
{
    *pointer = size ? pinned_allocate(size) : nullptr;
    return *pointer || !size ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* Whether an operation may be enqueued, and nothing forbids it there. */
cudaError_t check_stream(stream *stream)
{
    if (!stream || stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    if (stream->legacy)
        if (cudaError_t error = capture_spoil_of_device(stream->device, cudaErrorStreamCaptureImplicit)) return error;
    return capture_state(*stream);
}

/* The direction that cudaMemcpyDefault finds by the pointers. */
cudaMemcpyKind direction(const void *to, const void *from)
{
    bool to_device = locate(to).where == place::device, from_device = locate(from).where == place::device;
    if (to_device) return from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

/* A copy's two ends: which of them are the device's. */
struct ends {
    void *to;
    const void *from;
    size_t bytes;
    int device;
    bool to_device, from_device;
};

bool fit(const ends &e)
{
    return (e.to_device ? on_device(e.device, e.to, e.bytes, "copy: destination")
                        : on_host(e.to, e.bytes, "copy: destination")) &&
           (e.from_device ? on_device(e.device, e.from, e.bytes, "copy: source")
                          : on_host(e.from, e.bytes, "copy: source"));
}

/* `content`, where it was taken at the call, stands for the source. */
operation copy_operation(const ends &e, const std::shared_ptr<std::string> &content)
{
    return {"a copy",
            [e, content] {
                if (e.to_device) must_be_on_device(e.device, e.to, e.bytes, "copy: destination");
                if (e.from_device) must_be_on_device(e.device, e.from, e.bytes, "copy: source");
                memmove(e.to, content ? content->data() : e.from, e.bytes);
                return progress::done;
            },
            {}};
}

/* A copy is asynchronous for the host where both ends are the device's or pinned. From pageable memory the driver takes
 * the content at the call; to pageable memory, and from host to host, it waits. */
cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, stream *stream, bool wait)
{
    if (cudaError_t error = check_stream(stream)) return error;
    if (kind == cudaMemcpyDefault) kind = direction(to, from);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDeviceToDevice) return cudaErrorInvalidMemcpyDirection;
    if (bytes == 0) return cudaSuccess;
    ends e = {to,
              from,
              bytes,
              stream->device,
              kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
              kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice};
    if (!fit(e)) return cudaErrorInvalidValue;
    bool from_pageable = !e.from_device && locate(from).where == place::pageable;
    bool to_pageable = !e.to_device && locate(to).where == place::pageable;
    if ((wait || from_pageable || to_pageable) && stream->capturing)
        return explain("a copy of pageable memory, or one that waits, in a capture"),
               capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
    if (from_pageable && e.to_device) {
        trace("copy from pageable memory", "host-sync");
        enqueue(*stream, copy_operation(e, std::make_shared<std::string>(static_cast<const char *>(from), bytes)));
        return cudaSuccess;
    }
    enqueue(*stream, copy_operation(e, nullptr));
    bool on_host_only = !e.to_device && !e.from_device;
    if (to_pageable || on_host_only) trace("copy to pageable memory", "host-sync");
    if (to_pageable || on_host_only || (wait && kind != cudaMemcpyDeviceToDevice)) run_stream(*stream);
    return cudaSuccess;
}

cudaError_t fill(void *to, int value, size_t bytes, stream *stream)
{
    if (cudaError_t error = check_stream(stream)) return error;
    if (bytes == 0) return cudaSuccess;
    if (!on_device(stream->device, to, bytes, "fill")) return cudaErrorInvalidValue;
    int device = stream->device;
    enqueue(*stream, {"a fill",
                      [=] {
                          must_be_on_device(device, to, bytes, "fill");
                          memset(to, value, bytes);
                          return progress::done;
                      },
                      {}});
    return cudaSuccess;
}

} // namespace

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    return call(__func__, call_kind::memory, [=] { return allocate(pointer, size); });
}

cudaError_t cudaFree(void *pointer)
{
    return call(__func__, call_kind::memory, [=] {
        if (!pointer) return cudaSuccess;
        run_all();
        return device_release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (cudaError_t error = check_stream(stream)) return error;
        if (stream->capturing) return capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        return allocate(pointer, size);
    });
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] {
        stream *stream = find_stream(handle);
        if (cudaError_t error = check_stream(stream)) return error;
        if (!pointer) return cudaSuccess;
        if (!on_device(stream->device, pointer, 1, "free")) return cudaErrorInvalidValue;
        if (stream->capturing) return capture_spoil(*stream, cudaErrorStreamCaptureUnsupported);
        enqueue(*stream, {"a free",
                          [=] {
                              if (!device_release(pointer)) fatal(__FILE__, __LINE__, "%p is freed twice", pointer);
                              return progress::done;
                          },
                          {}});
        return cudaSuccess;
    });
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return call(__func__, call_kind::memory, [=] { return allocate_pinned(pointer, size); });
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned)
{
    return call(__func__, call_kind::memory, [=] { return allocate_pinned(pointer, size); });
}

cudaError_t cudaFreeHost(void *pointer)
{
    return call(__func__, call_kind::memory, [=] {
        if (!pointer) return cudaSuccess;
        run_all();
        return pinned_release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned)
{
    return call(__func__, call_kind::memory, [=] {
        if (!pointer || !size) return cudaErrorInvalidValue;
        return pin(pointer, size) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
    });
}

cudaError_t cudaHostUnregister(void *pointer)
{
    return call(__func__, call_kind::memory, [=] {
        run_all();
        return unpin(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
    });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return call(__func__, call_kind::blocking,
                [=] { return copy(to, from, bytes, kind, default_stream(current_device()), true); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] { return copy(to, from, bytes, kind, find_stream(handle), false); });
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return call(__func__, call_kind::plain, [=] { return fill(to, value, bytes, default_stream(current_device())); });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle)
{
    return call(__func__, call_kind::plain, [=] { return fill(to, value, bytes, find_stream(handle)); });
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    return call(__func__, call_kind::plain, [=] {
        *total = options().memory;
        *left = options().memory - device_bytes_used(current_device());
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer)
{
    return call(__func__, call_kind::plain, [=] {
        location found = locate(pointer);
        memset(attributes, 0, sizeof *attributes);
        attributes->device = found.device;
        void *address = const_cast<void *>(pointer);
        attributes->type = cudaMemoryTypeUnregistered;
        if (found.where == place::device) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->devicePointer = address;
        } else if (found.where == place::pinned) {
            attributes->type = cudaMemoryTypeHost;
            attributes->device = current_device();
            attributes->devicePointer = attributes->hostPointer = address;
        }
        return cudaSuccess;
    });
}
