/* Threads, barriers, warps, shared memory: right kernels are right in every order, and each known mistake shows. */
#include "check.h"

#include <vector>

static const int seeds = 20;

/* --- a sum over a block: two barriers around a shared array that is used again and again ----------------------- */

enum barriers { BOTH, WITHOUT_FIRST, WITHOUT_SECOND };

template <barriers B> __device__ float block_sum(float x, float *part)
{
    for (unsigned distance = 16; distance > 0; distance /= 2) x += __shfl_down_sync(0xffffffff, x, distance);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    if (B != WITHOUT_FIRST) __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++) sum += part[w];
    if (B != WITHOUT_SECOND) __syncthreads();
    return sum;
}

template <barriers B> __global__ void sums(float *out, const float *in, int rounds)
{
    SHARED(float, part, [32]);
    for (int r = 0; r < rounds; r++) {
        float sum = block_sum<B>(in[threadIdx.x] * float(r + 1), part);
        if (threadIdx.x == 0) out[blockIdx.x * unsigned(rounds) + unsigned(r)] = sum;
    }
}

template <barriers B> static int check_sums()
{
    const int rounds = 6, blocks = 3, threads = 128;
    float in[threads], out[blocks * rounds];
    for (int i = 0; i < threads; i++) in[i] = float(i);
    float *d_in = device_array(threads, in), *d_out = device_array<float>(blocks * rounds);
    MUST(launch(sums<B>, blocks, threads, 0, 0, d_out, d_in, rounds));
    read_array(out, d_out, blocks * rounds);
    for (int i = 0; i < blocks * rounds; i++)
        if (!(out[i] == float(i % rounds + 1) * 8128)) return 1;
    return 0;
}

static void a_block_sum_is_right_in_every_order(void **)
{
    assert_int_equal(wrong_seeds(seeds, check_sums<BOTH>), 0);
}

static void a_missing_barrier_shows(void **)
{
    int first = wrong_seeds(seeds, check_sums<WITHOUT_FIRST>), second = wrong_seeds(seeds, check_sums<WITHOUT_SECOND>);
    print_message("without the first barrier %d of %d seeds are wrong, without the second %d\n", first, seeds, second);
    assert_true(first >= 15);
    assert_true(second >= 10);
}

/* --- early exits, ballots, and a block whose last warp is not whole ---------------------------------------------- */

__global__ void exits(unsigned *ballots, int *counts)
{
    if (threadIdx.x % 4 == 3) return;
    unsigned ballot = __ballot_sync(0xffffffff, threadIdx.x % 2);
    __syncthreads();
    int count = __syncthreads_count(threadIdx.x % 4 == 2);
    ballots[threadIdx.x] = ballot;
    counts[threadIdx.x] = count;
}

static int check_exits()
{
    const unsigned threads = 80;
    unsigned ballots[threads];
    int counts[threads];
    auto *d_ballots = device_array<unsigned>(threads);
    auto *d_counts = device_array<int>(threads);
    MUST(launch(exits, 1, threads, 0, 0, d_ballots, d_counts));
    read_array(ballots, d_ballots, threads);
    read_array(counts, d_counts, threads);
    for (unsigned t = 0; t < threads; t++) {
        bool gone = t % 4 == 3;
        if (ballots[t] != (gone ? 0xffffffff : t < 64 ? 0x22222222 : 0x2222)) return 1;
        if (counts[t] != (gone ? -1 : 20)) return 1;
    }
    return 0;
}

static void barriers_and_votes_do_not_wait_for_threads_that_exited(void **)
{
    assert_int_equal(wrong_seeds(seeds, check_exits), 0);
}

__global__ void all_but_one_exit(int *out)
{
    if (threadIdx.x > 0) return;
    __syncthreads();
    *out = 1;
}

static int check_that_one_goes_on()
{
    int out, *d_out = device_array<int>(1);
    MUST(launch(all_but_one_exit, 1, 64, 0, 0, d_out));
    read_array(&out, d_out, 1);
    return out == 1 ? 0 : 1;
}

static void a_barrier_opens_when_the_last_thread_that_is_not_there_exits(void **)
{
    assert_int_equal(wrong_seeds(seeds, check_that_one_goes_on), 0);
}

/* --- shuffles ---------------------------------------------------------------------------------------------------- */

__global__ void shuffles(int *out)
{
    int lane = int(threadIdx.x);
    out[lane] = __shfl_sync(0xffffffff, lane, 5, 8);
    out[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3, 16);
    out[64 + lane] = __shfl_down_sync(0xffffffff, lane, 3, 16);
    out[96 + lane] = __shfl_xor_sync(0xffffffff, lane, 6);
    out[128 + lane] = int(__reduce_add_sync(0xffffffff, unsigned(lane)));
    if (lane < 16)
        out[160 + lane] = __shfl_xor_sync(0xffff, lane, 1);
    else
        out[160 + lane] = __shfl_xor_sync(0xffff0000, lane, 2);
}

static int check_shuffles()
{
    int out[192];
    int *d_out = device_array<int>(192);
    MUST(launch(shuffles, 1, 32, 0, 0, d_out));
    read_array(out, d_out, 192);
    for (int lane = 0; lane < 32; lane++) {
        int inside = lane % 16;
        if (out[lane] != lane / 8 * 8 + 5 || out[32 + lane] != (inside >= 3 ? lane - 3 : lane)) return 1;
        if (out[64 + lane] != (inside < 13 ? lane + 3 : lane) || out[96 + lane] != (lane ^ 6)) return 1;
        if (out[128 + lane] != 496 || out[160 + lane] != (lane < 16 ? lane ^ 1 : lane ^ 2)) return 1;
    }
    return 0;
}

static void shuffles_move_what_cuda_says(void **)
{
    assert_int_equal(wrong_seeds(seeds, check_shuffles), 0);
}

/* --- rules that end the program ------------------------------------------------------------------------------------
 */

__global__ void outside_its_mask(float *out)
{
    out[threadIdx.x] = __shfl_xor_sync(0xffff, out[threadIdx.x], 1);
}

__global__ void leaves_before_the_shuffle(float *out)
{
    for (int i = 0; i < 4; i++) {
        if (i == 2 && threadIdx.x == 7) break;
        out[threadIdx.x] = __shfl_xor_sync(0xffffffff, out[threadIdx.x], 1);
    }
    __syncthreads();
}

__global__ void two_operations_in_one_mask(float *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_xor_sync(0xffffffff, out[threadIdx.x], 1);
    else
        __syncwarp();
}

__global__ void two_barriers(float *out)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        out[threadIdx.x] = 1;
    if (threadIdx.x >= 32) __syncthreads();
}

__global__ void misaligned_load(float *out)
{
    struct alignas(16) four {
        float x[4];
    };
    out[0] = __ldg(reinterpret_cast<const four *>(out + 1)).x[0];
}

static int run_on_64(void (*kernel)(float *))
{
    MUST(launch(kernel, 1, 64, 0, 0, device_array<float>(64)));
    MUST(cudaDeviceSynchronize());
    return 0;
}

static void broken_rules_are_told_with_their_place(void **)
{
    assert_int_equal(aborted_seeds(seeds, "not in the mask 0x0000ffff", [] { return run_on_64(outside_its_mask); }),
                     seeds);
    assert_int_equal(aborted_seeds(seeds, "block_test.cc", [] { return run_on_64(outside_its_mask); }), seeds);
    assert_int_equal(aborted_seeds(seeds, "deadlock", [] { return run_on_64(leaves_before_the_shuffle); }), seeds);
    assert_int_equal(aborted_seeds(seeds, "with the same mask", [] { return run_on_64(two_operations_in_one_mask); }),
                     seeds);
    assert_int_equal(aborted_seeds(seeds, "others at that of", [] { return run_on_64(two_barriers); }), seeds);
    assert_int_equal(aborted_seeds(1, "not aligned to 16", [] { return run_on_64(misaligned_load); }), 1);
}

/* --- shared memory ---------------------------------------------------------------------------------------------------
 */

__global__ void reads_shared_first(float *out, int n)
{
    SHARED(float, fixed, [4]);
    SHARED_DYNAMIC(float, row);
    out[2 * blockIdx.x] = fixed[0];
    out[2 * blockIdx.x + 1] = row[n - 1];
    fixed[0] = row[n - 1] = 1;
}

static int check_poison()
{
    const float zeros[8] = {};
    float out[8], *d_out = device_array(8, zeros);
    MUST(launch(reads_shared_first, 4, 1, 64, 0, d_out, 16));
    read_array(out, d_out, 8);
    for (float value : out)
        if (!std::isnan(value)) return 1;
    return 0;
}

static void shared_memory_is_poison_in_every_block(void **)
{
    assert_int_equal(wrong_seeds(4, check_poison), 0);
}

static int overrun(size_t bytes, int n)
{
    MUST(launch(reads_shared_first, 1, 1, bytes, 0, device_array<float>(2), n));
    MUST(cudaDeviceSynchronize());
    return 0;
}

static void dynamic_shared_memory_ends_where_it_ends(void **)
{
    assert_int_equal(in_child({}, [] { return overrun(64, 16); }).exit, 0);
    assert_int_not_equal(in_child({}, [] { return overrun(64, 17); }).exit, 0);
}

static void shared_memory_above_48_kib_must_be_asked_for(void **)
{
    auto launched = [](int asked, size_t used) {
        MUST(cudaFuncSetAttribute(reinterpret_cast<const void *>(reads_shared_first),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, asked));
        cudaError_t error = launch(reads_shared_first, 1, 1, used, 0, device_array<float>(2), 1);
        MUST(cudaDeviceSynchronize());
        return int(error);
    };
    assert_int_equal(in_child({}, [=] { return launched(48 << 10, 48 << 10); }).exit, cudaSuccess);
    assert_int_equal(in_child({}, [=] { return launched(48 << 10, 49 << 10); }).exit, cudaErrorInvalidValue);
    assert_int_equal(in_child({}, [=] { return launched(200 << 10, 200 << 10); }).exit, cudaSuccess);
}

/* --- the order of blocks ----------------------------------------------------------------------------------------- */

__global__ void writes_its_turn(int *turn, int *counter)
{
    turn[blockIdx.x] = atomicAdd(counter, 1);
}

static int blocks_in_order()
{
    int turn[8], zero = 0;
    int *d_turn = device_array<int>(8), *counter = device_array(1, &zero);
    MUST(launch(writes_its_turn, 8, 1, 0, 0, d_turn, counter));
    read_array(turn, d_turn, 8);
    for (int b = 0; b < 8; b++)
        if (turn[b] != b) return 1;
    return 0;
}

static void blocks_run_in_random_order(void **)
{
    assert_true(wrong_seeds(seeds, blocks_in_order) >= seeds - 2);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_sum_is_right_in_every_order),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(barriers_and_votes_do_not_wait_for_threads_that_exited),
        cmocka_unit_test(a_barrier_opens_when_the_last_thread_that_is_not_there_exits),
        cmocka_unit_test(shuffles_move_what_cuda_says),
        cmocka_unit_test(broken_rules_are_told_with_their_place),
        cmocka_unit_test(shared_memory_is_poison_in_every_block),
        cmocka_unit_test(dynamic_shared_memory_ends_where_it_ends),
        cmocka_unit_test(shared_memory_above_48_kib_must_be_asked_for),
        cmocka_unit_test(blocks_run_in_random_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
