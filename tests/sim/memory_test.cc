/* Device memory: poisoned, fenced, and closed to the host. */
#include "check.h"

#include <cstring>
#include <set>

__global__ void write_at(unsigned char *memory, size_t index)
{
    memory[index] = 1;
}

__global__ void copy_bytes(unsigned char *to, const unsigned char *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

static int new_memory_is_all_ones()
{
    unsigned char *memory = device_array<unsigned char>(1000), out[1000];
    read_array(out, memory, sizeof out);
    for (unsigned char byte : out)
        if (byte != 0xFF) return 1;
    return 0;
}

static void new_memory_is_poison(void **)
{
    assert_int_equal(wrong_seeds(2, new_memory_is_all_ones), 0);
}

/* A kernel that still reads what was freed behind its back gets 0xFE (where AddressSanitizer does not end it first). */
static int read_after_free()
{
    unsigned char *memory = device_array<unsigned char>(64), *to = device_array<unsigned char>(64), out[64];
    MUST(cudaMemset(memory, 1, 64));
    MUST(cudaDeviceSynchronize());
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaFreeAsync(memory, stream));
    MUST(cudaDeviceSynchronize());
    MUST(launch(copy_bytes, 1, 1, 0, stream, to, memory, 64));
    MUST(cudaStreamSynchronize(stream));
    read_array(out, to, 64);
    return out[0] == 1;
}

static void freed_memory_is_poison(void **)
{
    outcome outcome = in_child({}, read_after_free);
    assert_true(outcome.exit == 0 || outcome.says("use-after-poison"));
}

static int write_behind(size_t size, size_t index)
{
    unsigned char *memory = device_array<unsigned char>(size);
    MUST(launch(write_at, 1, 1, 0, nullptr, memory, index));
    MUST(cudaFree(memory));
    return 0;
}

/* Nothing orders the free after the fill. */
static int fill_after_free()
{
    unsigned char *memory = device_array<unsigned char>(64);
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaMemset(memory, 1, 64));
    MUST(cudaFreeAsync(memory, stream));
    MUST(cudaDeviceSynchronize());
    return 0;
}

static void a_fill_of_freed_memory_is_told(void **)
{
    int told = 0;
    for (int seed = 0; seed < 20; seed++)
        told += in_child({"SIM_SEED=" + std::to_string(seed)}, fill_after_free).says("has been freed");
    assert_in_range(told, 5, 15);
}

static void a_write_behind_an_allocation_is_told(void **)
{
    assert_int_equal(in_child({}, [] { return write_behind(1000, 999); }).exit, 0);
    for (size_t index : {size_t(1000), size_t(1024), size_t(1279)}) {
        outcome outcome = in_child({}, [=] { return write_behind(1000, index); });
        assert_true(outcome.says("behind its end") || outcome.says("use-after-poison"));
    }
}

static int touch_from_the_host(bool write)
{
    volatile unsigned char *memory = device_array<unsigned char>(64);
    if (write) memory[0] = 1;
    return memory[0] == 0xFF ? 0 : 1;
}

static void the_host_cannot_touch_device_memory(void **)
{
    for (bool write : {false, true}) {
        outcome outcome = in_child({}, [=] { return touch_from_the_host(write); });
        assert_int_not_equal(outcome.exit, 0);
        assert_true(outcome.says("the host touches device memory"));
    }
}

static int copies_that_cuda_refuses()
{
    char host[64], *device = device_array<char>(64), *freed = device_array<char>(64);
    void *pinned;
    MUST(cudaMallocHost(&pinned, 64));
    MUST(cudaFree(freed));
    int refused = 0;
    refused += cudaMemcpy(device, host, 65, cudaMemcpyHostToDevice) == cudaErrorInvalidValue;
    refused += cudaMemcpy(device + 1, host, 64, cudaMemcpyHostToDevice) == cudaErrorInvalidValue;
    refused += cudaMemcpy(device, host, 64, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue;
    refused += cudaMemcpy(host, device, 64, cudaMemcpyHostToHost) == cudaErrorInvalidValue;
    refused += cudaMemcpy(host, freed, 64, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue;
    refused += cudaMemcpy(pinned, device, 65, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue;
    refused += cudaMemset(device, 0, 65) == cudaErrorInvalidValue;
    refused += cudaMemset(host, 0, 64) == cudaErrorInvalidValue;
    refused += cudaFree(host) == cudaErrorInvalidValue;
    refused += cudaFree(freed) == cudaErrorInvalidValue;
    MUST(cudaMemcpy(device, host, 64, cudaMemcpyDefault));
    return refused;
}

static void pointers_and_ranges_are_checked(void **)
{
    assert_int_equal(in_child({}, copies_that_cuda_refuses).exit, 10);
}

static int fill_the_device()
{
    size_t left, total, before;
    void *memory, *more;
    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&memory, total / 2));
    MUST(cudaMemGetInfo(&left, &total));
    if (left > total / 2 || cudaMalloc(&more, total / 2) != cudaErrorMemoryAllocation) return 1;
    if (cudaGetLastError() != cudaErrorMemoryAllocation || cudaGetLastError() != cudaSuccess) return 2;
    MUST(cudaFree(memory));
    MUST(cudaMemGetInfo(&left, &total));
    return left == before && total == 8 << 20 ? 0 : 3;
}

static void a_device_has_as_much_memory_as_asked_for(void **)
{
    assert_int_equal(in_child({"SIM_MEMORY=8388608"}, fill_the_device).exit, 0);
}

/* The first of so many allocations of 1 MiB, each freed at once, whose address was given out before; 0: none. */
static int first_address_used_again()
{
    std::set<void *> seen;
    for (int i = 0; i < 200; i++) {
        void *memory;
        MUST(cudaMalloc(&memory, size_t(1) << 20));
        MUST(cudaFree(memory));
        if (!seen.insert(memory).second) return i;
    }
    return 0;
}

static void freed_memory_is_kept_back_and_then_used_again(void **)
{
    assert_in_range(in_child({}, first_address_used_again).exit, 50, 80);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_memory_is_poison),
        cmocka_unit_test(freed_memory_is_poison),
        cmocka_unit_test(a_fill_of_freed_memory_is_told),
        cmocka_unit_test(a_write_behind_an_allocation_is_told),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(pointers_and_ranges_are_checked),
        cmocka_unit_test(a_device_has_as_much_memory_as_asked_for),
        cmocka_unit_test(freed_memory_is_kept_back_and_then_used_again),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
