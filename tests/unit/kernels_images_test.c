/* Patches of images and pooling: every instance against the reference. */
#include "tests/unit/kernels_support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void image_case(struct instance *t, struct image_shape s)
{
    const size_t places = image_places_down(&s) * image_places_across(&s);
    const size_t n = s.rows * s.channels * s.height * s.width;
    const size_t patches = s.rows * places * s.channels * s.window_height * s.window_width;
    uint64_t seed = n + patches;
    char what[200];
    struct array a[] = {array_random(t->type, n, 0, 1, &seed), array_new(t->type, n), array_new(t->type, patches),
                        array_random(t->type, patches, 0, 1, &seed)};
    DESCRIBE(what, t, "patches %zu×%zu×%zu×%zu window %zu×%zu stride %zu padding %zu first %d", s.rows, s.height,
             s.width, s.channels, s.window_height, s.window_width, s.stride, s.padding, s.channels_first);
    t->table->patches_forward(t->kernels, a[2].data, a[0].data, s);
    t->reference_table->patches_forward(t->reference, a[2].exact, a[0].exact, s);
    array_check(what, &a[2], 0, 0);
    t->table->patches_backward(t->kernels, a[1].data, a[3].data, s);
    t->reference_table->patches_backward(t->reference, a[1].exact, a[3].exact, s);
    array_check(what, &a[1], t->unit, 100 * t->wide_unit);
    arrays_free(a, COUNT(a));
}

/* The CPU rounds an element once for each of the windows that it is under, of which a gradient is at most 1. */
static double rounded_between(const struct instance *t, const struct image_shape *s)
{
    const double windows =
        (double)((s->window_height - 1) / s->stride + 1) * (double)((s->window_width - 1) / s->stride + 1);
    return t->on_cpu && windows > 1 ? t->unit * windows * windows : 0;
}

static void pool_case(struct instance *t, struct image_shape s, bool has_nan)
{
    const size_t n = s.rows * s.channels * s.height * s.width;
    const size_t m = s.rows * s.channels * image_places_down(&s) * image_places_across(&s);
    uint64_t seed = n;
    char what[200];
    struct array a[] = {array_random(t->type, n, 0, 1, &seed), array_new(t->type, n), array_new(t->type, m),
                        array_random(t->type, m, 0, 1, &seed)};
    for (size_t i = 0; has_nan && i < n; i += 7) array_set(&a[0], i, (double)NAN);
    for (int pooling = POOL_MAX; pooling <= POOL_AVERAGE; pooling++) {
        DESCRIBE(what, t, "pool %d %zu×%zu×%zu×%zu window %zu×%zu stride %zu", pooling, s.rows, s.height, s.width,
                 s.channels, s.window_height, s.window_width, s.stride);
        t->table->pool_forward(t->kernels, a[2].data, a[0].data, (enum pooling)pooling, s);
        t->reference_table->pool_forward(t->reference, a[2].exact, a[0].exact, (enum pooling)pooling, s);
        array_check(what, &a[2], t->unit, 10 * t->wide_unit);
        t->table->pool_backward(t->kernels, a[1].data, a[3].data, a[0].data, (enum pooling)pooling, s);
        t->reference_table->pool_backward(t->reference, a[1].exact, a[3].exact, a[0].exact, (enum pooling)pooling, s);
        array_check(what, &a[1], t->unit, 10 * t->wide_unit + rounded_between(t, &s));
    }
    arrays_free(a, COUNT(a));
}

/* rows, channels, height, width, window, stride, padding: odd sizes, borders and parts that no window reaches, images
 * that are one window; 16 channels are whole 16-byte accesses in every type. */
static void image_shapes(struct instance *t)
{
    static const struct image_shape shapes[] = {
        {2, 3, 5, 4, 3, 3, 1, 1, false}, {2, 3, 5, 4, 3, 3, 1, 1, true},   {1, 1, 6, 6, 2, 3, 2, 0, true},
        {3, 4, 3, 3, 3, 3, 1, 0, false}, {2, 2, 7, 7, 5, 5, 1, 2, false},  {2, 16, 4, 3, 4, 3, 1, 0, false},
        {1, 8, 9, 7, 3, 1, 3, 1, false}, {2, 5, 11, 13, 5, 3, 2, 2, true}, {0, 3, 5, 4, 3, 3, 1, 1, false},
        {3, 1, 1, 1, 1, 1, 1, 0, true},  {1, 2, 2, 2, 5, 5, 1, 4, false},
    };
    static const struct image_shape pools[] = {
        {2, 3, 5, 4, 2, 2, 2, 0, false},  {1, 5, 6, 6, 3, 3, 3, 0, false}, {2, 16, 7, 6, 2, 2, 2, 0, false},
        {2, 16, 7, 6, 3, 3, 2, 0, false}, {1, 3, 5, 4, 2, 3, 1, 0, false}, {2, 8, 8, 9, 1, 2, 3, 0, false},
        {0, 3, 5, 4, 2, 2, 2, 0, false},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) image_case(t, shapes[i]);
    for (size_t i = 0; i < COUNT(pools); i++)
        for (int has_nan = 0; has_nan < 2; has_nan++) pool_case(t, pools[i], has_nan);
}

static void images_agree(void **state)
{
    (void)state;
    for_each_instance(image_shapes);
}

/* An image of 1 … 9 under a window of 2 with a border: the first patch has the corner's 1 alone. */
static void patches_by_hand(void **state)
{
    (void)state;
    const struct image_shape s = {1, 1, 3, 3, 2, 2, 1, 1, true};
    const double image[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    double patches[16 * 4], back[9], ones[16 * 4];
    struct kernels *reference =
        kernels_open_reference(&(struct kernels_options){.compute_type = DTYPE_FP64, .threads = 1});
    reference->table->patches_forward(reference, patches, image, s);
    const double first[] = {0, 0, 0, 1}, sixth[] = {1, 2, 4, 5};
    assert_memory_equal(patches, first, sizeof first);
    assert_memory_equal(patches + 5 * 4, sixth, sizeof sixth);
    for (size_t i = 0; i < COUNT(ones); i++) ones[i] = 1;
    reference->table->patches_backward(reference, back, ones, s);
    for (size_t i = 0; i < 9; i++) assert_true(back[i] == 4); /* every element is under four windows */
    kernels_close(reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_agree),
        cmocka_unit_test(patches_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
