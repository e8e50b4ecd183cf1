/* The commands behind `sluice NAME`, and what they share: ends, errors, signals.
 *
 * argv[0] is the command's name. A command parses, calls the library, prints answers on stdout and
 * everything else on stderr, and returns its exit status (design section 8). main() checks afterwards
 * that stdout really took what was written. */
#ifndef SL_RUNTIME_COMMANDS_H
#define SL_RUNTIME_COMMANDS_H

#include <stddef.h>
#include "base/err.h"

int sl_cmd_convert(int argc, char **argv);
int sl_cmd_inspect(int argc, char **argv);
int sl_cmd_verify(int argc, char **argv);
int sl_cmd_export(int argc, char **argv);
int sl_cmd_run(int argc, char **argv);
int sl_cmd_chat(int argc, char **argv);
int sl_cmd_serve(int argc, char **argv);
int sl_cmd_logits(int argc, char **argv);
int sl_cmd_eval(int argc, char **argv);
int sl_cmd_tokenize(int argc, char **argv);
int sl_cmd_detokenize(int argc, char **argv);
int sl_cmd_bench(int argc, char **argv);
int sl_cmd_bench_io(int argc, char **argv); /* `bench io`: argv[0] is "io" */
int sl_cmd_calibrate(int argc, char **argv);
int sl_cmd_health(int argc, char **argv);
int sl_cmd_plan(int argc, char **argv);
int sl_cmd_synth(int argc, char **argv);
int sl_cmd_probe(int argc, char **argv);
int sl_cmd_replay(int argc, char **argv);

/* Prints "sluice: LINE" on stderr and returns the exit status for err->code. */
int sl_cmd_fail(const struct sl_err *err);

/* Writes to stdout; flush also hands it over at once (streamed text). A closed pipe or a full disk is
 * an error, so that a long answer stops instead of going nowhere. */
int sl_cmd_write(const void *data, size_t len, struct sl_err *err);
int sl_cmd_flush(struct sl_err *err);

/* Fills descriptors 0, 1 and 2 where the caller closed them: a pack opened later must not become the
 * standard input, nor a file being written the standard output. Called by main(), first. */
void sl_cmd_hold_standard_files(void);

/* SIGINT and SIGTERM ask loops to stop (sl_interrupted()); a second one ends the process at once.
 * SIGPIPE becomes a write error. Called by main(). */
void sl_cmd_catch_signals(void);

#endif
