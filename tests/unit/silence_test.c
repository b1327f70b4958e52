/* When a rank's silence is spoken of, and when it is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/silence.h"

static void it_is_spoken_of_once_and_so_is_its_end(void **state)
{
    (void)state;
    struct silence silence = {0};
    static const struct {
        uint64_t silent;
        enum silence_event event;
    } looks[] = {
        {0, SILENCE_NOTHING_NEW},    {1999, SILENCE_NOTHING_NEW}, {2000, SILENCE_BEGINS},
        {2250, SILENCE_NOTHING_NEW}, {9750, SILENCE_NOTHING_NEW}, {40, SILENCE_ENDS},
        {290, SILENCE_NOTHING_NEW},  {3000, SILENCE_BEGINS},      {9999, SILENCE_NOTHING_NEW},
        {10000, SILENCE_TOO_LONG},
    };
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        assert_int_equal(silence_update(&silence, looks[i].silent, 10000), looks[i].event);
        if (looks[i].event == SILENCE_ENDS) assert_int_equal(silence.longest, 9750);
    }
}

static void a_short_limit_comes_before_any_word(void **state)
{
    (void)state;
    struct silence silence = {0};
    assert_int_equal(silence_update(&silence, 499, 500), SILENCE_NOTHING_NEW);
    assert_int_equal(silence_update(&silence, 500, 500), SILENCE_TOO_LONG);
    assert_false(silence.spoken_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_spoken_of_once_and_so_is_its_end),
        cmocka_unit_test(a_short_limit_comes_before_any_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
