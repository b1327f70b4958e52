#include "daemon/coordinator/audit.h"

#include <stdio.h>
#include <string.h>

#include "daemon/coordinator/caller.h"
#include "daemon/coordinator/inside.h"

static void write_line(struct coordinator *coordinator)
{
    struct audit *audit = &coordinator->audit;
    const struct step_counters *counters = conductor_boundary(coordinator->conductor);
    const struct control_record record = {
        .method = audit->method[0] ? audit->method : NULL,
        .by = audit->by,
        .role = audit->role[0] ? audit->role : NULL,
        .at = audit->at,
        .step = counters->step,
        .optimizer_steps = counters->optimizer_steps,
        .refusal = audit->why,
        .count = audit->refused,
    };
    coordinator_append(coordinator, control_line(&record));
    audit->refused = 0;
    audit->next = uv_now(&coordinator->loop) + AUDIT_MILLISECONDS;
}

void audit_refused(struct coordinator *coordinator, const char *method, int fd, const char *role, const char *why)
{
    struct audit *audit = &coordinator->audit;
    if (coordinator->concluded) return; /* the log has its last line */
    const char *slash = method ? strrchr(method, '/') : NULL;
    audit->at = coordinator_unix_seconds();
    snprintf(audit->method, sizeof audit->method, "%s", slash ? slash + 1 : "");
    snprintf(audit->role, sizeof audit->role, "%s", role ? role : "");
    snprintf(audit->why, sizeof audit->why, "%s", why);
    caller_at(audit->by, fd, role);
    audit->refused++;
    audit_tick(coordinator);
}

void audit_tick(struct coordinator *coordinator)
{
    if (coordinator->audit.refused && !coordinator->concluded && uv_now(&coordinator->loop) >= coordinator->audit.next)
        write_line(coordinator);
}

void audit_end(struct coordinator *coordinator)
{
    if (coordinator->audit.refused) write_line(coordinator);
}
