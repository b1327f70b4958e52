/* The CUDA runtime: devices, errors, and what every call has in common. */
#include "call.h"
#include "graph.h"
#include "kernel.h"
#include "memory.h"
#include "settings.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <pthread.h>

namespace sim
{

namespace
{

thread_local int device;
thread_local cudaError_t last_error;
cudaError_t sticky_error; /* a device that failed has failed for good */
bool forked;              /* CUDA does not work in a child of a process that has used it */

std::atomic<uint64_t> calls;

/* Errors after which a context is lost. */
bool is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

} // namespace

bool is_forked()
{
    static const bool watched = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;
    (void)watched;
    return forked;
}

void note_call()
{
    calls++;
}

uint64_t calls_noted()
{
    return calls;
}

cudaError_t call_begins(const char *name, call_kind kind)
{
    note_call();
    if (is_forked()) return cudaErrorInitializationError;
    if (kind == call_kind::blocking)
        trace(name, "host-sync");
    else
        trace(name, nullptr);
    if (sticky_error) return sticky_error;
    if (int code = injected_failure(name)) {
        cudaError_t error = cudaError_t(code);
        if (is_sticky(error)) sticky_error = error;
        return error;
    }
    if (options().devices == 0) return cudaErrorNoDevice;
    if (kind == call_kind::memory) return capture_spoil_of_thread(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t call_ends(cudaError_t error)
{
    if (error && error != cudaErrorNotReady) last_error = error;
    return error;
}

int current_device()
{
    return device;
}

stream *find_stream(cudaStream_t handle)
{
    if (!handle || handle == cudaStreamLegacy) return default_stream(device);
    auto *found = reinterpret_cast<stream *>(handle);
    return handle != cudaStreamPerThread && stream_exists(found) ? found : nullptr;
}

} // namespace sim

using namespace sim;

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = options().devices;
    return call(__func__, call_kind::plain, [] { return cudaSuccess; });
}

cudaError_t cudaGetDevice(int *out)
{
    return call(__func__, call_kind::plain, [=] { return *out = device, cudaSuccess; });
}

cudaError_t cudaSetDevice(int asked)
{
    return call(__func__, call_kind::plain, [=] {
        if (asked < 0 || asked >= options().devices) return cudaErrorInvalidDevice;
        device = asked;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return call(__func__, call_kind::plain, [] { return cudaSuccess; });
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int asked)
{
    return call(__func__, call_kind::plain, [=] {
        if (asked < 0 || asked >= options().devices) return cudaErrorInvalidDevice;
        switch (attribute) {
        case cudaDevAttrMultiProcessorCount:
            *value = multiprocessors;
            break;
        case cudaDevAttrMaxThreadsPerBlock:
            *value = max_threads_per_block;
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = threads_per_multiprocessor;
            break;
        case cudaDevAttrMaxBlocksPerMultiprocessor:
            *value = blocks_per_multiprocessor;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = int(shared_per_block);
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = int(shared_per_block_optin);
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = int(shared_per_multiprocessor);
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *value = 9;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = 0;
            break;
        case cudaDevAttrWarpSize:
            *value = 32;
            break;
        case cudaDevAttrL2CacheSize:
            *value = 50 << 20;
            break;
        case cudaDevAttrMemoryPoolsSupported:
            *value = 1;
            break;
        default:
            explain("device attribute %d is not simulated", int(attribute));
            return cudaErrorInvalidValue;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int asked)
{
    return call(__func__, call_kind::plain, [=] {
        if (asked < 0 || asked >= options().devices) return cudaErrorInvalidDevice;
        memset(properties, 0, sizeof *properties);
        snprintf(properties->name, sizeof properties->name, "simulated device");
        properties->uuid.bytes[0] = 0x51;
        properties->uuid.bytes[15] = char(asked);
        properties->totalGlobalMem = options().memory;
        properties->sharedMemPerBlock = shared_per_block;
        properties->sharedMemPerBlockOptin = shared_per_block_optin;
        properties->sharedMemPerMultiprocessor = shared_per_multiprocessor;
        properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
        properties->warpSize = 32;
        properties->maxThreadsPerBlock = max_threads_per_block;
        properties->maxThreadsPerMultiProcessor = threads_per_multiprocessor;
        properties->maxBlocksPerMultiProcessor = blocks_per_multiprocessor;
        properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
        properties->maxThreadsDim[2] = 64;
        properties->maxGridSize[0] = 0x7fffffff;
        properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
        properties->multiProcessorCount = multiprocessors;
        properties->major = 9;
        properties->l2CacheSize = 50 << 20;
        properties->pciBusID = asked + 1;
        properties->concurrentKernels = properties->asyncEngineCount = 1;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int asked)
{
    return call(__func__, call_kind::plain, [=] {
        if (asked < 0 || asked >= options().devices) return cudaErrorInvalidDevice;
        return snprintf(text, size_t(size), "0000:%02x:00.0", unsigned(asked) + 1) < size ? cudaSuccess
                                                                                          : cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return call(__func__, call_kind::plain, [=] {
        if (least) *least = 0;
        if (greatest) *greatest = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return call(__func__, call_kind::plain, [=] { return *version = CUDART_VERSION, cudaSuccess; });
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    return call(__func__, call_kind::plain, [=] { return *version = CUDART_VERSION, cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return call(__func__, call_kind::blocking, [] {
        if (cudaError_t error = capture_spoil_of_thread(cudaErrorStreamCaptureUnsupported)) return error;
        return run_all(), cudaSuccess;
    });
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
#define NAME(code) \
    case code:     \
        return #code
    switch (error) {
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInitializationError);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInvalidDevicePointer);
        NAME(cudaErrorInvalidMemcpyDirection);
        NAME(cudaErrorInvalidDeviceFunction);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorECCUncorrectable);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorIllegalState);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorLaunchTimeout);
        NAME(cudaErrorHostMemoryAlreadyRegistered);
        NAME(cudaErrorHostMemoryNotRegistered);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
        NAME(cudaErrorStreamCaptureMerge);
        NAME(cudaErrorStreamCaptureUnmatched);
        NAME(cudaErrorStreamCaptureUnjoined);
        NAME(cudaErrorStreamCaptureIsolation);
        NAME(cudaErrorStreamCaptureImplicit);
        NAME(cudaErrorCapturedEvent);
        NAME(cudaErrorStreamCaptureWrongThread);
    default:
        return "an error without a simulated name";
    }
#undef NAME
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}
