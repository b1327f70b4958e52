/*
 * GroupNorm (Wu and He 2018): the channels of each group of each row over all positions. A block has whole groups of a
 * row that lie side by side, over all positions or, where there are few such blocks, over a part of them.
 */
#include "kernels/cuda/channels.h"
#include "kernels/cuda/moments.h"

namespace gpu
{

constexpr size_t ENOUGH_BLOCKS = 512; /* fewer have their positions shared out */
constexpr unsigned RUNS_ABREAST = 4;  /* that a thread reads before it goes on */
constexpr size_t MANY_POSITIONS = 8;  /* that threads may be one below the other for */

struct group_layout {
    size_t positions, channels, groups, width; /* width: channels of a group */
    unsigned across, down;                     /* threads of a block: side by side, and one below the other */
    unsigned lane_threads;                     /* side by side in the same group */
    size_t span;                               /* groups of a block */
    size_t spans, sets;                        /* of a row; in all */
    size_t parts, positions_each;
};

static group_layout group_layout_of(const struct norm_shape &s, unsigned columns)
{
    group_layout l = {};
    l.positions = s.positions, l.channels = s.channels, l.groups = s.groups, l.width = s.channels / s.groups;
    l.sets = s.rows * s.groups;
    const size_t pieces = l.width / columns, most = s.positions < MANY_POSITIONS ? THREADS : WARP;
    l.span = most / pieces < 1 ? 1 : most / pieces < s.groups ? most / pieces : s.groups;
    l.spans = ceiling(s.groups, l.span);
    l.lane_threads = static_cast<unsigned>(pieces < THREADS ? pieces : THREADS);
    l.across = static_cast<unsigned>(l.span) * l.lane_threads;
    const size_t room = THREADS / l.across;
    l.down = static_cast<unsigned>(room < s.positions ? room : s.positions);
    const size_t blocks = s.rows * l.spans, useful = ceiling<size_t>(s.positions, l.down * RUNS_ABREAST);
    l.parts = blocks < ENOUGH_BLOCKS ? ceiling(2 * ENOUGH_BLOCKS, blocks) : 1;
    l.parts = l.parts < useful ? l.parts : useful;
    l.positions_each = ceiling(s.positions, l.parts);
    l.parts = ceiling(s.positions, l.positions_each);
    return l;
}

/* Where a block and a thread of it are. */
template <unsigned N> struct group_place {
    unsigned x, y;
    size_t part, begin, end; /* positions */
    size_t base, first;      /* the element of position 0 and the channel that the block begins with */
    size_t columns, set;
    bool has; /* the thread has columns, of that set */

    __device__ group_place(const group_layout &l)
        : x(threadIdx.x % l.across), y(threadIdx.x / l.across), part(blockIdx.x % l.parts)
    {
        const size_t row = blockIdx.x / l.parts / l.spans, group = blockIdx.x / l.parts % l.spans * l.span;
        const size_t groups = l.groups - group < l.span ? l.groups - group : l.span;
        begin = part * l.positions_each;
        end = begin + l.positions_each < l.positions ? begin + l.positions_each : l.positions;
        first = group * l.width;
        base = row * l.positions * l.channels + first;
        columns = groups * l.width;
        set = row * l.groups + group + x / l.lane_threads;
        has = y < l.down && static_cast<size_t>(x) * N < columns;
    }
    __device__ bool leads(const group_layout &l) const
    {
        return has && y == 0 && x % l.lane_threads == 0;
    }
};

/* Runs of N channels. */
struct some_runs {
    size_t at[RUNS_ABREAST];        /* elements */
    unsigned channel[RUNS_ABREAST]; /* of the first one */
    bool there[RUNS_ABREAST];
};

/* Those of a thread. */
template <unsigned N, class Body>
__device__ void for_runs(const group_layout &l, const group_place<N> &place, const Body &body)
{
    size_t position = place.begin + place.y, column = static_cast<size_t>(place.x) * N;
    while (place.has && position < place.end) {
        some_runs runs;
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++) {
            runs.there[u] = position < place.end;
            runs.at[u] = place.base + position * l.channels + column;
            runs.channel[u] = static_cast<unsigned>(place.first + column);
            column += static_cast<size_t>(l.across) * N;
            if (column < place.columns) continue;
            column = static_cast<size_t>(place.x) * N;
            position += l.down;
        }
        body(runs);
    }
}

/* The states of the threads of a group become its first thread's, one below the other and then side by side. */
template <class Pass>
__device__ void join_group(typename Pass::part &state, typename Pass::part *states, const group_layout &l, unsigned x,
                           unsigned y)
{
    states[threadIdx.x] = state;
    const auto join = [&](unsigned index, unsigned count, unsigned stride, bool mine) {
        unsigned distance = 1;
        while (distance < count) distance *= 2;
        for (distance /= 2; distance > 0; distance /= 2) {
            __syncthreads();
            if (!mine || index >= distance || index + distance >= count) continue;
            Pass::join(state, states[threadIdx.x + distance * stride]);
            states[threadIdx.x] = state;
        }
    };
    join(y, l.down, l.across, y < l.down);
    join(x % l.lane_threads, l.lane_threads, 1, y == 0);
    __syncthreads();
    state = states[x - x % l.lane_threads];
}

enum group_stage { GROUP_ALL, GROUP_SUMS, GROUP_APPLY };

/* Pass has a `part` that it adds runs to and joins, makes two numbers of a set's, and applies those to runs. */
template <class Pass, unsigned N>
__global__ void __launch_bounds__(THREADS)
    groups_kernel(Pass pass, group_layout l, typename Pass::part *parts, enum group_stage stage)
{
    SHARED(typename Pass::part, states, [THREADS]);
    const group_place<N> place(l);
    typename Pass::result numbers = {};
    if (stage == GROUP_APPLY) {
        if (place.has) numbers = pass.kept(place.set);
    } else {
        typename Pass::part state = {};
        for_runs(l, place, [&](const some_runs &runs) { pass.template add<N>(state, runs, place.set); });
        join_group<Pass>(state, states, l, place.x, place.y);
        if (stage == GROUP_SUMS) {
            if (place.leads(l)) parts[place.part * l.sets + place.set] = state;
            return;
        }
        numbers = pass.made(state);
        if (place.leads(l)) pass.keep(place.set, numbers);
    }
    for_runs(l, place, [&](const some_runs &runs) { pass.template apply<N>(numbers, runs, place.set); });
}

template <class Pass>
__global__ void __launch_bounds__(THREADS)
    group_parts_kernel(Pass pass, group_layout l, const typename Pass::part *parts)
{
    const size_t set = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    if (set >= l.sets) return;
    typename Pass::part state = parts[set];
    for (size_t part = 1; part < l.parts; part++) Pass::join(state, parts[part * l.sets + set]);
    pass.keep(set, pass.made(state));
}

template <unsigned N, class Pass>
static void groups_of(struct cuda *cuda, const char *name, Pass pass, const struct norm_shape &shape)
{
    using part = typename Pass::part;
    const group_layout l = group_layout_of(shape, N);
    const unsigned grid = static_cast<unsigned>(shape.rows * l.spans * l.parts);
    const unsigned threads = ceiling(l.across * l.down, WARP) * WARP;
    part *const parts = static_cast<part *>(cuda->scratch);
    if (l.parts == 1) return start(cuda, name, groups_kernel<Pass, N>, grid, threads, 0, pass, l, parts, GROUP_ALL);
    pass.keep_in(parts + l.parts * l.sets, l.sets);
    start(cuda, name, groups_kernel<Pass, N>, grid, threads, 0, pass, l, parts, GROUP_SUMS);
    start(cuda, name, group_parts_kernel<Pass>, static_cast<unsigned>(ceiling<size_t>(l.sets, THREADS)), THREADS, 0,
          pass, l, parts);
    start(cuda, name, groups_kernel<Pass, N>, grid, threads, 0, pass, l, parts, GROUP_APPLY);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

template <class T> struct group_forward {
    using W = real<T>;
    T *y;
    W *mean, *rstd;
    const T *x, *weight, *bias;

    struct part {
        double count, mean, squares;
    };
    struct result {
        W mean, rstd;
    };

    /* About the runs' own mean first. */
    template <unsigned N> __device__ void add(part &state, const some_runs &runs, size_t) const
    {
        W v[RUNS_ABREAST][N];
        unsigned count = 0;
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++) {
            if (!runs.there[u]) continue;
            load<N>(v[u], x + runs.at[u]);
            count += N;
        }
        const double n = count, inverse = count == RUNS_ABREAST * N ? 1.0 / (RUNS_ABREAST * N) : 1 / n;
        double own_mean = 0, squares = 0;
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++)
            for (unsigned i = 0; i < N && runs.there[u]; i++) own_mean += static_cast<double>(v[u][i]);
        own_mean *= inverse;
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++)
            for (unsigned i = 0; i < N && runs.there[u]; i++) {
                const double apart = static_cast<double>(v[u][i]) - own_mean;
                squares += apart * apart;
            }
        join(state, {n, own_mean, squares});
    }
    static __device__ void join(part &into, const part &other)
    {
        if (other.count == 0) return;
        moments_share(into.count, other.count).join(into.mean, into.squares, other.mean, other.squares);
        into.count += other.count;
    }
    __device__ result made(const part &state) const
    {
        return {static_cast<W>(state.mean), static_cast<W>(1 / square_root(state.squares / state.count + NORM_EPS))};
    }
    void keep_in(void *, size_t)
    {
    }
    __device__ void keep(size_t set, const result &numbers) const
    {
        mean[set] = numbers.mean;
        rstd[set] = numbers.rstd;
    }
    __device__ result kept(size_t set) const
    {
        return {mean[set], rstd[set]};
    }
    template <unsigned N> __device__ void apply(const result &numbers, const some_runs &runs, size_t) const
    {
        W v[RUNS_ABREAST][N];
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++)
            if (runs.there[u]) load<N>(v[u], x + runs.at[u]);
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++) {
            if (!runs.there[u]) continue;
            W w[N], b[N] = {};
            load<N>(w, weight + runs.channel[u]);
            if (bias) load<N>(b, bias + runs.channel[u]);
            for (unsigned i = 0; i < N; i++) v[u][i] = (v[u][i] - numbers.mean) * numbers.rstd * w[i] + b[i];
            store<N>(y + runs.at[u], v[u]);
        }
    }
};

/* Elements at a time: a thread's are of one group. */
template <class T, class... P> static bool is_whole(const struct norm_shape &shape, const P *...arrays)
{
    return shape.channels / shape.groups % lanes<T> == 0 && (aligned(arrays) && ...);
}

static bool is_empty(const struct norm_shape &shape)
{
    return shape.rows == 0 || shape.positions == 0 || shape.channels == 0;
}

template <class T>
static void groupnorm_forward(struct kernels *kernels, compute *y, wide *mean, wide *rstd, const compute *x,
                              const compute *weight, const compute *bias, struct norm_shape shape)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) return;
    const group_forward<T> f = {
        static_cast<T *>(y),       static_cast<W *>(mean),         static_cast<W *>(rstd),
        static_cast<const T *>(x), static_cast<const T *>(weight), static_cast<const T *>(bias)};
    if (is_whole<T>(shape, y, x, weight, bias))
        groups_of<lanes<T>>(cuda, "groupnorm_forward", f, shape);
    else
        groups_of<1>(cuda, "groupnorm_forward", f, shape);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* With n = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)). */
template <class T> struct group_backward {
    using W = real<T>;
    T *dx;
    const T *dy, *x;
    const W *mean, *rstd;
    const T *weight;
    double count;        /* of a set */
    W *mean_g, *mean_gn; /* [sets], where they are kept */

    struct part {
        double g, gn;
    };
    struct result {
        W g, gn;
    };

    /* dy·weight and n of the runs that are there. */
    template <unsigned N>
    __device__ void read(W (&g)[RUNS_ABREAST][N], W (&n)[RUNS_ABREAST][N], const some_runs &runs, size_t set) const
    {
        const W about = mean[set], by = rstd[set];
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++) {
            if (!runs.there[u]) continue;
            W w[N];
            load<N>(g[u], dy + runs.at[u]);
            load<N>(n[u], x + runs.at[u]);
            load<N>(w, weight + runs.channel[u]);
            for (unsigned i = 0; i < N; i++) {
                g[u][i] *= w[i];
                n[u][i] = (n[u][i] - about) * by;
            }
        }
    }
    template <unsigned N> __device__ void add(part &state, const some_runs &runs, size_t set) const
    {
        W g[RUNS_ABREAST][N], n[RUNS_ABREAST][N], sum_g = 0, sum_gn = 0;
        read<N>(g, n, runs, set);
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++)
            for (unsigned i = 0; i < N && runs.there[u]; i++) {
                sum_g += g[u][i];
                sum_gn += g[u][i] * n[u][i];
            }
        state.g += static_cast<double>(sum_g);
        state.gn += static_cast<double>(sum_gn);
    }
    static __device__ void join(part &into, const part &other)
    {
        into.g += other.g;
        into.gn += other.gn;
    }
    __device__ result made(const part &state) const
    {
        return {static_cast<W>(state.g / count), static_cast<W>(state.gn / count)};
    }
    void keep_in(void *memory, size_t sets)
    {
        mean_g = static_cast<W *>(memory);
        mean_gn = mean_g + sets;
    }
    __device__ void keep(size_t set, const result &numbers) const
    {
        if (!mean_g) return;
        mean_g[set] = numbers.g;
        mean_gn[set] = numbers.gn;
    }
    __device__ result kept(size_t set) const
    {
        return {mean_g[set], mean_gn[set]};
    }
    template <unsigned N> __device__ void apply(const result &numbers, const some_runs &runs, size_t set) const
    {
        W g[RUNS_ABREAST][N], n[RUNS_ABREAST][N];
        read<N>(g, n, runs, set);
        const W by = rstd[set];
#pragma unroll
        for (unsigned u = 0; u < RUNS_ABREAST; u++) {
            if (!runs.there[u]) continue;
            for (unsigned i = 0; i < N; i++) g[u][i] = by * (g[u][i] - numbers.g - n[u][i] * numbers.gn);
            store<N>(dx + runs.at[u], g[u]);
        }
    }
};

/* dweight and dbias: over all rows, each of which has its own mean and rstd. */
template <class T> struct group_sums : gradient_sums<T> {
    using W = real<T>;
    template <unsigned N> using item = typename gradient_sums<T>::template item<N>;

    const T *dy, *x;
    const W *mean, *rstd;
    size_t groups, width;
    W *dweight, *dbias;
    static constexpr const double *row_weight = nullptr;

    template <unsigned N> struct lane {
        const group_sums &terms;
        size_t group;
        __device__ lane(const group_sums &of, size_t channel) : terms(of), group(channel / of.width)
        {
        }
        __device__ void read(item<N> &to, size_t at, size_t row) const
        {
            const size_t set = row * terms.groups + group;
            const W about = terms.mean[set], by = terms.rstd[set];
            load<N>(to.dy, terms.dy + at);
            load<N>(to.dyn, terms.x + at);
            for (unsigned i = 0; i < N; i++) to.dyn[i] = to.dy[i] * ((to.dyn[i] - about) * by);
        }
    };

    __device__ void finish(size_t channel, double sum_dy, double sum_dyn) const
    {
        if (dbias) dbias[channel] += static_cast<W>(sum_dy);
        if (dweight) dweight[channel] += static_cast<W>(sum_dyn);
    }
};

template <class T>
static void groupnorm_backward(struct kernels *kernels, compute *dx, wide *dweight, wide *dbias, const compute *dy,
                               const compute *x, const wide *mean, const wide *rstd, const compute *weight,
                               struct norm_shape shape)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) return;
    const size_t width = shape.channels / shape.groups;
    group_sums<T> sums;
    sums.dy = static_cast<const T *>(dy);
    sums.x = static_cast<const T *>(x);
    sums.mean = static_cast<const W *>(mean);
    sums.rstd = static_cast<const W *>(rstd);
    sums.groups = shape.groups;
    sums.width = width;
    sums.dweight = static_cast<W *>(dweight);
    sums.dbias = static_cast<W *>(dbias);
    if (dweight || dbias) /* before dx, which may be dy */
        channel_sums<T>(cuda, "groupnorm_backward", sums, shape, is_whole<T>(shape, dy, x));
    const group_backward<T> b = {static_cast<T *>(dx),
                                 sums.dy,
                                 sums.x,
                                 sums.mean,
                                 sums.rstd,
                                 static_cast<const T *>(weight),
                                 static_cast<double>(width * shape.positions),
                                 nullptr,
                                 nullptr};
    if (is_whole<T>(shape, dx, dy, x, weight))
        groups_of<lanes<T>>(cuda, "groupnorm_backward", b, shape);
    else
        groups_of<1>(cuda, "groupnorm_backward", b, shape);
}

template <class T> void fill_group_norm(struct cuda *cuda)
{
    cuda->table.groupnorm_forward = groupnorm_forward<T>;
    cuda->table.groupnorm_backward = groupnorm_backward<T>;
}
FOR_EVERY_TYPE(fill_group_norm);

} // namespace gpu
