/* For tests of the simulation: a program of its own per case and seed, because a broken rule ends it. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include <cuda_runtime.h>

#include "sim_device.h"

#include <cstdio>
#include <functional>
#include <string>
#include <sys/types.h>
#include <tuple>
#include <vector>

#include <fstream> // before cmocka.h, whose macro fail() it would meet

// cmocka.h wants these before it
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
extern "C" {
#include <cmocka.h>
}

/* What became of a child process. */
struct outcome {
    int exit;           /* its status; −1: ended by a signal */
    int signal;         /* that */
    std::string errors; /* its standard error */
    bool says(const char *text) const
    {
        return errors.find(text) != std::string::npos;
    }
};

struct child {
    pid_t process;
    FILE *errors;
};

/* Run `body` in a child whose environment has `settings` ("SIM_SEED=3") in addition; its value is the exit status. */
child start_child(const std::vector<std::string> &settings, const std::function<int()> &body);
outcome end_of(child &child);
outcome in_child(const std::vector<std::string> &settings, const std::function<int()> &body);

/* In how many of seeds 0 … `seeds` − 1 `body` does not return 0. */
int wrong_seeds(int seeds, const std::function<int()> &body, const std::vector<std::string> &settings = {});

/* In how many of them it ends by abort() and says `text`. */
int aborted_seeds(int seeds, const char *text, const std::function<int()> &body);

/* A call that must succeed in the child. */
#define MUST(call) must(int(call), #call, __LINE__)
void must(int error, const char *call, int line);

template <class... P, size_t... I>
cudaError_t launch_tuple(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                         std::tuple<P...> &arguments, std::index_sequence<I...>)
{
    void *addresses[] = {&std::get<I>(arguments)..., nullptr};
    launch_note(kernel);
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, addresses, shared_bytes, stream);
}

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   const A &...arguments)
{
    std::tuple<P...> values{static_cast<P>(arguments)...};
    return launch_tuple(kernel, grid, block, shared_bytes, stream, values, std::index_sequence_for<P...>{});
}

/* Device memory with a value in every element. */
template <class T> T *device_array(size_t n)
{
    void *memory;
    MUST(cudaMalloc(&memory, n * sizeof(T)));
    return static_cast<T *>(memory);
}
template <class T> T *device_array(size_t n, const T *values)
{
    T *array = device_array<T>(n);
    MUST(cudaMemcpy(array, values, n * sizeof(T), cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize()); // from pageable memory it may return before the device has the values
    return array;
}

template <class T> void read_array(T *values, const T *array, size_t n)
{
    MUST(cudaMemcpy(values, array, n * sizeof(T), cudaMemcpyDeviceToHost));
}

#endif
