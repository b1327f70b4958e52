#include "daemon/coordinator/turns.h"

#define TURN 250000          /* nanoseconds, and what one who has begun takes beyond it */
#define STRANGERS 10         /* have one part in so many of all time … */
#define CREDIT_MAX 20000000  /* … and of the time in which there were none, nanoseconds */
#define MILLISECOND 1000000u /* in nanoseconds */

void turns_init(struct turns *turns, uint64_t now)
{
    *turns = (struct turns){.credit = CREDIT_MAX, .at = now};
}

void turns_begin(struct turns *turns)
{
    turns->spent = 0;
}

void turns_spend(struct turns *turns, uint64_t nanoseconds, bool by_strangers)
{
    turns->spent += nanoseconds;
    if (by_strangers) turns->credit -= (int64_t)nanoseconds;
}

bool turns_have_time(const struct turns *turns)
{
    return turns->spent < TURN;
}

uint64_t turns_wait(struct turns *turns, uint64_t now)
{
    const int64_t credit = turns->credit + (int64_t)((now - turns->at) / STRANGERS);
    turns->credit = credit < CREDIT_MAX ? credit : CREDIT_MAX;
    turns->at = now;
    return credit > 0 ? 0 : (uint64_t)(1 - credit) * STRANGERS / MILLISECOND + 1;
}
