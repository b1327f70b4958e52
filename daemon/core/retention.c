#include "daemon/core/retention.h"

void retention_choose(const struct retention *rules, const uint64_t *optimizer_steps, size_t count, bool *goes)
{
    for (size_t i = 0; i < count; i++) {
        const bool is_old = rules->keep != 0 && count - i > rules->keep;
        const bool is_mark = rules->keep_every != 0 && optimizer_steps[i] % rules->keep_every == 0;
        goes[i] = is_old && !is_mark;
    }
}
