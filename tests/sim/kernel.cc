#include "kernel.h"

#include "block.h"
#include "settings.h"

#include <cstring>
#include <unordered_map>

namespace sim
{

namespace
{

struct known_kernel {
    trampoline call;
    const size_t *argument_bytes;
    size_t arguments;
};

struct kernel_table {
    std::unordered_map<const void *, known_kernel> known;
    std::unordered_map<const void *, int> allowed_shared;
    uint64_t launches;
};

kernel_table &table()
{
    static auto *const kernels = new kernel_table();
    return *kernels;
}

/* A launch's arguments as they were when it was made. */
class argument_copies
{
  public:
    argument_copies(const known_kernel &kernel, void **arguments)
    {
        for (size_t i = 0; i < kernel.arguments; i++) {
            const char *from = static_cast<const char *>(arguments[i]);
            // an own block each: aligned for any type that is no more aligned than operator new's memory
            values_.push_back(std::make_unique<char[]>(kernel.argument_bytes[i]));
            memcpy(values_.back().get(), from, kernel.argument_bytes[i]);
            pointers_.push_back(values_.back().get());
        }
    }

    void *const *pointers() const
    {
        return pointers_.data();
    }

  private:
    std::vector<std::unique_ptr<char[]>> values_;
    std::vector<void *> pointers_;
};

cudaError_t check_shape(dim3 blocks, dim3 threads)
{
    uint64_t in_block = uint64_t(threads.x) * threads.y * threads.z;
    if (in_block == 0 || threads.z > 64 || in_block > max_threads_per_block)
        return explain("a block of %u×%u×%u threads", threads.x, threads.y, threads.z), cudaErrorInvalidConfiguration;
    if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.x > 0x7fffffff || blocks.y > 65535 ||
        blocks.z > 65535)
        return explain("a grid of %u×%u×%u blocks", blocks.x, blocks.y, blocks.z), cudaErrorInvalidConfiguration;
    return cudaSuccess;
}

} // namespace

void register_kernel(const void *kernel, trampoline call, const size_t *argument_bytes, size_t arguments)
{
    std::lock_guard<std::mutex> guard(lock);
    table().known[kernel] = {call, argument_bytes, arguments};
}

cudaError_t enqueue_kernel(stream &stream, const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                           size_t shared_bytes)
{
    auto found = table().known.find(kernel);
    if (found == table().known.end())
        return explain("launch_note was not called for this kernel"), cudaErrorInvalidDeviceFunction;
    if (cudaError_t wrong = check_shape(blocks, threads)) return wrong;
    if (shared_bytes > size_t(allowed_shared(kernel)))
        return explain("%zu bytes of dynamic shared memory, %d are allowed", shared_bytes, allowed_shared(kernel)),
               cudaErrorInvalidValue;
    auto copies = std::make_shared<argument_copies>(found->second, arguments);
    grid grid = {kernel, found->second.call, nullptr, blocks, threads, shared_bytes};
    enqueue(stream, {"a kernel",
                     [grid, copies]() mutable {
                         grid.arguments = copies->pointers();
                         run_grid(grid, table().launches++);
                         return progress::done;
                     },
                     {}});
    return cudaSuccess;
}

cudaError_t allow_shared(const void *kernel, int bytes)
{
    if (bytes < 0 || size_t(bytes) > shared_per_block_optin)
        return explain("%d bytes of dynamic shared memory, a block has %zu", bytes, shared_per_block_optin),
               cudaErrorInvalidValue;
    table().allowed_shared[kernel] = bytes;
    return cudaSuccess;
}

int allowed_shared(const void *kernel)
{
    auto found = table().allowed_shared.find(kernel);
    return found == table().allowed_shared.end() ? int(shared_per_block) : found->second;
}

} // namespace sim
