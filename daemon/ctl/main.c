/* gaccctl: asks a running job, watches it and steers it. Subcommands and options are one table (daemon/manual.h). */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/command_line.h"
#include "daemon/ctl/arguments.h"
#include "daemon/ctl/outcome.h"
#include "daemon/manual.h"

static const struct manual_option general_options[] = {
    {"run", 'r', false, "DIR", "runs",
     "the run directory; without it, the newest below runs/, one whose job is running first"},
    {"connect", 'c', false, "ADDRESS", NULL, "an address, unix:PATH or HOST:PORT, instead of a run directory"},
    {"token-file", 't', false, "PATH", "file",
     "for --connect: holds the job's token in a line, or is a copy of its connection.json; nobody else may read it"},
    {"tls", 'T', false, NULL, NULL, "for --connect: TLS, with a certificate that the system trusts"},
    {"ca", 'A', false, "PATH", "file", "for --connect: TLS, with a certificate that one of this PEM file signed"},
    {"certificate", 'C', false, "PATH", "file",
     "a certificate of your own (PEM), for a job with control.tls.client_authorities"},
    {"key", 'K', false, "PATH", "file", "its key (PEM)"},
    {"plaintext", 'P', false, NULL, NULL, "for --connect: no TLS, though others can read the token on its way"},
    {"json", 'j', false, NULL, NULL, "for programs; an error is an object, too, and standard error stays empty"},
    {"help", 'h', true, NULL, NULL, "more about a command"},
    {"version", 'v', false, NULL, NULL, "the version"},
    {0},
};
static const struct manual_option watch_options[] = {
    {"from", 'f', false, "STEP", NULL, "begin with this attempt of the job's present start; 1: with its first"},
    {0},
};
static const struct manual_option checkpoint_options[] = {
    {"wait", 'w', false, NULL, NULL, "until it is complete on disk, or has failed"},
    {0},
};
static const struct manual_option stop_options[] = {
    {"finish", 'F', false, NULL, NULL, "the job counts as done: it ends as after its last step, and is not resumed"},
    {0},
};
static const struct manual_option config_options[] = {
    {"live", 'l', false, NULL, NULL, "instead, the keys that set takes, one a line"},
    {0},
};

static const struct manual_command commands[] = {
    {"status", NULL, NULL, NULL, ask_status, "where the job stands, and each rank", NULL},
    {"watch", NULL, NULL, watch_options, watch,
     "each step, evaluation, checkpoint and event as it is made, until the job ends",
     "A row for each line of the job's log.jsonl but its header; --json gives the lines themselves. After a lost "
     "connection it goes "
     "on by itself behind the last line it has shown. The last row says how the job ended."},
    {"top", NULL, NULL, NULL, top, "the whole screen: progress, loss and loss scale, ranks, events; q quits",
     "Bars behind the ranks are the work of their last step, waiting left out: the longest is the one that the others "
     "wait for. "
     "Where not all ranks have room, the slowest come first.\n\n"
     "    p  pause       r  resume     c  checkpoint     (y confirms)\n"
     "    q  quit        Ctrl-L  draw anew\n\n"
     "Any terminal will do that knows the cursor movements of a VT100; graphs are drawn in braille where the locale is "
     "UTF-8. "
     "NO_COLOR turns colours off."},
    {"pause", NULL, NULL, NULL, ask_pause, "let the ranks wait behind the step under way, as long as it takes",
     "A paused job answers everything; checkpoint and stop take effect at once."},
    {"resume", NULL, NULL, NULL, ask_resume, "let a paused job go on", NULL},
    {"checkpoint", NULL, NULL, checkpoint_options, ask_checkpoint, "save behind the step under way, and go on", NULL},
    {"stop", NULL, NULL, stop_options, ask_stop,
     "end behind the step under way with a checkpoint (75), from which the same gaccd command goes on", NULL},
    {"set", "key.path=value…", "keys", NULL, ask_set, "change the running job, all of the keys or none",
     "Keys and values are those of the job file; which of them a running job takes, config --live says. The answer "
     "names what was, "
     "what is now, and behind which step. Whatever was set holds after a resume, too.\n\n"
     "    gaccctl set optimizer.lr=3e-4 optimizer.clip_norm=0.5"},
    {"config", NULL, NULL, config_options, ask_config,
     "the effective job, with what was set while it ran, as a job file", NULL},
    {"health", NULL, NULL, NULL, ask_health, "whether the job serves calls (0) or not (1), as probes ask", NULL},
    {0},
};

static struct manual_section sections[] = {
    {"Finding the job",
     "--run names the run directory, whose connection.json has the address and the token of its job. Without it, and "
     "without --connect, it is the one below runs/ whose log was written last, running jobs first. A token never comes "
     "from the command line or the environment, where others could see it."},
    {"TLS",
     "connection.json tells the certificate of a job with control.tls, so --run and --token-file with a copy of it "
     "need no more, and take no other certificate. With --connect alone, --ca names who signed it, and it has to be "
     "for the HOST that is given. No token goes to another host without TLS unless --plaintext says so."},
    {"JSON", "With --json standard output is one object, or for watch an object a line. Numbers that there are not are "
             "null. An error is\n\n"
             "    {\"error\":{\"status\":69,\"message\":\"runs/gpt: no job is running there; …\"}}\n\n"
             "with the exit status in it, on standard output as well; standard error is empty then."},
    {"Exit status", NULL}, /* outcome_manual */
    {"Environment",
     "NO_COLOR: no colours. They are used on a terminal only, as is the line that a call waits for the end of a step."},
    {"Files", "    DIR/connection.json   address, token and process of the running job (0600)\n"
              "    DIR/result.json       how the last one ended\n"
              "    DIR/log.jsonl         what watch shows"},
    {0},
};

static const struct manual manual = {
    .program = "gaccctl",
    .summary = "asks a running gaccd job, watches it and steers it",
    .usage = "[--run DIR | --connect ADDRESS [--token-file PATH] [--tls | --ca PATH]] COMMAND [--json]",
    .options = general_options,
    .commands = commands,
    .sections = sections,
};

/* ---- the command line ---- */

/* What standard output does not take, as where the error is that it takes nothing, is said as to people. */
static int fail(const struct arguments *arguments)
{
    const struct error *error = arguments->error;
    if (arguments->json) outcome_print_json(error);
    const bool is_written = !fflush(stdout) && !ferror(stdout);
    if (!arguments->json || !is_written) fprintf(stderr, "gaccctl: %s\n", error->text);
    return (int)error->status;
}

static int close_output(const struct arguments *arguments)
{
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    error_set_errno(arguments->error, STATUS_IO, errno, "standard output");
    return fail(arguments);
}

static int take_step(struct arguments *arguments, const char *text)
{
    char *end;
    errno = 0;
    arguments->from = strtoull(text, &end, 10);
    if (!*end && text[0] >= '1' && text[0] <= '9' && !errno) return 0;
    return error_set(arguments->error, STATUS_USAGE, "--from %s: a step from 1 on is wanted", text);
}

static int take_option(struct arguments *arguments, int option)
{
    switch (option) {
    case 'r':
        arguments->words.run = optarg;
        return 0;
    case 'c':
        arguments->words.connect = optarg;
        return 0;
    case 't':
        arguments->words.token_file = optarg;
        return 0;
    case 'T':
        arguments->words.tls = true;
        return 0;
    case 'A':
        arguments->words.ca = optarg;
        return 0;
    case 'C':
        arguments->words.certificate = optarg;
        return 0;
    case 'K':
        arguments->words.key = optarg;
        return 0;
    case 'P':
        arguments->words.plaintext = true;
        return 0;
    case 'w':
        arguments->wait = true;
        return 0;
    case 'F':
        arguments->finish = true;
        return 0;
    case 'l':
        arguments->live = true;
        return 0;
    case 'f':
        return take_step(arguments, optarg);
    default: /* --json was seen before */
        return 0;
    }
}

struct parsed {
    const struct manual_command *command; /* NULL: none is named, and --help or --version is asked for */
    bool help, version;
};

static int find_command(struct parsed *parsed, const struct arguments *arguments, const char *name)
{
    struct error unknown;
    parsed->command = manual_find(&manual, name);
    if (parsed->command && parsed->command->act) return 0;
    if (parsed->command) return error_set(arguments->error, STATUS_USAGE, "%s is not offered by this version", name);
    manual_no_command(&manual, name, &unknown);
    return error_set(arguments->error, STATUS_USAGE, "%s (gaccctl --help)", unknown.text);
}

/* Options stand anywhere; the first word that is none is the command. Which of them are its own is known at the end. */
static int parse(int count, char **words, struct parsed *parsed, struct arguments *arguments)
{
    struct manual_getopt getopt;
    int given[MANUAL_OPTIONS_MAX], given_count = 0, status = 0;
    manual_getopt(&manual, NULL, &getopt);
    opterr = 0;
    for (int option; (option = getopt_long(count, words, getopt.letters, getopt.options, NULL)) != -1;) {
        if (option == '?' || option == ':') return option_fault(option, words, getopt.options, arguments->error);
        parsed->help |= option == 'h';
        parsed->version |= option == 'v';
        if (!manual_has_option(&manual, NULL, option) && given_count < MANUAL_OPTIONS_MAX)
            given[given_count++] = option;
        if ((status = take_option(arguments, option))) return status;
    }
    arguments->operands = words + optind + 1;
    arguments->operand_count = count - optind - 1;
    if (optind < count) status = find_command(parsed, arguments, words[optind]);
    for (int i = 0; i < given_count && !status && parsed->command; i++)
        for (const struct option *option = getopt.options; option->name; option++)
            if (option->val == given[i] && !manual_has_option(&manual, parsed->command, given[i]))
                status = error_set(arguments->error, STATUS_USAGE, "--%s: is no option of %s (gaccctl %s --help)",
                                   option->name, parsed->command->name, parsed->command->name);
    return status;
}

static int check_operands(const struct manual_command *command, const struct arguments *arguments)
{
    if (command->operand && !arguments->operand_count)
        return error_set(arguments->error, STATUS_USAGE, "%s: %s is wanted (gaccctl %s --help)", command->name,
                         command->operand, command->name);
    if (!command->operand && arguments->operand_count)
        return error_set(arguments->error, STATUS_USAGE, "%s: one word too many: %s", command->name,
                         arguments->operands[0]);
    return 0;
}

static int act(int count, char **words, struct arguments *arguments)
{
    struct parsed parsed = {0};
    int status = parse(count, words, &parsed, arguments);
    if (status) return status;
    if (parsed.version) {
        puts("gaccctl " GACC_VERSION);
        return 0;
    }
    if (parsed.help) {
        manual_help(&manual, parsed.command, stdout);
        return 0;
    }
    if (!parsed.command) return error_set(arguments->error, STATUS_USAGE, "a command is wanted (gaccctl --help)");
    status = check_operands(parsed.command, arguments);
    if (!status) status = target_find(arguments->target, &arguments->words, arguments->error);
    return status ? status : parsed.command->act(arguments);
}

int main(int count, char **words)
{
    struct error error;
    static struct target target;
    struct arguments arguments = {.target = &target, .error = &error};
    setlocale(LC_CTYPE, "");
    for (size_t i = 0; sections[i].title; i++)
        if (!sections[i].text) sections[i].text = outcome_manual();
    if (count == 3 && !strcmp(words[1], "--print") && manual_print(&manual, words[2], stdout))
        return close_output(&arguments);
    for (int i = 1; i < count; i++) /* for an error in a word before it, too */
        arguments.json |= !strcmp(words[i], "--json");
    if (act(count, words, &arguments)) return fail(&arguments);
    return close_output(&arguments);
}
