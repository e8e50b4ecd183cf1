/* sluice NAME ...: finds the command and sees that its answer arrived. */
#include <stdio.h>
#include <string.h>
#include "base/version.h"
#include "kernels/kernels.h"
#include "runtime/args.h"
#include "runtime/commands.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
};

static const struct command commands[] = {
    {"convert", sl_cmd_convert, "turn a checkpoint into a pack"},
    {"inspect", sl_cmd_inspect, "what a checkpoint or a pack holds"},
    {"verify", sl_cmd_verify, "check a pack: structure and sizes, or every checksum"},
    {"export", sl_cmd_export, "turn a lossless pack back into a checkpoint"},
    {"run", sl_cmd_run, "continue a prompt"},
    {"serve", sl_cmd_serve, "serve the model over HTTP: the OpenAI API and a page"},
    {"chat", sl_cmd_chat, "talk with the model"},
    {"logits", sl_cmd_logits, "logits of every position, to a file"},
    {"eval", sl_cmd_eval, "how well a pack predicts a text, and how far it is from another"},
    {"tokenize", sl_cmd_tokenize, "text to token ids"},
    {"detokenize", sl_cmd_detokenize, "token ids to text"},
    {"calibrate", sl_cmd_calibrate, "statistics of a text for `convert --calib`"},
    {"health", sl_cmd_health, "how the router's load moved between two packs"},
    {"plan", sl_cmd_plan, "what fits, how fast and at what cost, before a download"},
    {"probe", sl_cmd_probe, "measure this machine, write a board file"},
    {"replay", sl_cmd_replay, "hit rate against cache size for a recorded trace"},
    {"synth", sl_cmd_synth, "make a pack of any shape with made-up weights"},
    {"bench", sl_cmd_bench, "time kernels, prefill and decode on this machine"},
    {NULL, NULL, NULL},
};

static void print_overview(FILE *out)
{
    fprintf(out, "Example: sluice run k3.pack -p 'The capital of France is' -n 16\n\n"
                 "Usage: sluice COMMAND [arguments]\n"
                 "Runs Kimi K3 and models of its architecture from a pack on this machine.\n\n");
    for (const struct command *c = commands; c->name; c++)
        fprintf(out, "  %-12s %s\n", c->name, c->what);
    fprintf(out, "\n  --version    version, commit, build flags, instruction set\n"
                 "  COMMAND --help for one command\n");
}

/* What the command wrote must have arrived: an answer cut by a full disk is no answer. */
static int finish(int status)
{
    struct sl_err err = {0};
    int rc = sl_cmd_flush(&err);
    return rc && !status ? sl_cmd_fail(&err) : status;
}

int main(int argc, char **argv)
{
    sl_cmd_hold_standard_files();
    sl_cmd_catch_signals();
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_overview(stdout);
        return finish(0);
    }
    if (strcmp(name, "--version") == 0) {
        printf("sluice %s (%s) %s; %s\n", SL_VERSION, sl_build_commit, sl_cpu_name(sl_cpu_detect()),
               sl_build_flags);
        return finish(0);
    }
    const char *names[SL_ARG_COUNT(commands)];
    int n = 0;
    for (const struct command *c = commands; c->name; c++) {
        if (strcmp(c->name, name) == 0) return finish(c->run(argc - 1, argv + 1));
        names[n++] = c->name;
    }
    const char *near = sl_args_nearest(name, names, n);
    fprintf(stderr, "sluice: unknown command '%s'%s%s%s; see 'sluice --help'\n", name,
            near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
    return 2;
}
