/* sluice tokenize and detokenize: the tokenizer alone, from a pack or from any folder that holds
 * tiktoken.model and tokenizer_config.json. Weights are not opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "offload/config.h"
#include "runtime/args.h"
#include "runtime/cli_input.h"
#include "runtime/commands.h"
#include "runtime/report.h"
#include "runtime/tokenizer.h"
#include "runtime/utf8.h"

#define MANIFEST_MAX_BYTES (UINT64_C(256) << 20)

/* A pack fixes the vocabulary in its config; of other folders it follows from tiktoken.model. */
static int open_tokenizer(struct sl_tokenizer **out, const char *dir, struct sl_err *err)
{
    char manifest[SL_PATH_MAX];
    char tokenizer[SL_PATH_MAX];
    if (!sl_path_join(manifest, dir, "pack.json") || !sl_path_join(tokenizer, dir, "tokenizer"))
        return sl_fail(err, SL_E_ARG, dir, NULL, "path is too long");
    if (access(dir, F_OK) != 0) return sl_fail(err, SL_E_PACK, dir, NULL, "no such pack or folder");
    if (access(manifest, F_OK) != 0)
        return sl_tokenizer_open(out, dir, SL_TOKENIZER_VOCAB_AUTO, SL_E_SOURCE, err);
    cJSON *root = NULL;
    const cJSON *config;
    struct sl_config *c = malloc(sizeof *c);
    if (!c) return sl_fail(err, SL_E_NOMEM, manifest, NULL, "no memory");
    int rc = sl_json_read(&root, manifest, MANIFEST_MAX_BYTES, SL_E_PACK, err);
    if (!rc) rc = sl_json_obj(root, "config", &config, manifest, SL_E_PACK, err);
    if (!rc) rc = sl_config_from_json(c, config, manifest, SL_E_PACK, err);
    if (!rc) rc = sl_tokenizer_open(out, tokenizer, c->vocab_size, SL_E_PACK, err);
    cJSON_Delete(root);
    free(c);
    return rc;
}

static int print_ids(const struct sl_ids *ids, bool json, struct sl_err *err)
{
    if (json) {
        cJSON *o = sl_report_open(1);
        if (o) sl_report_ids(o, "ids", ids->v, ids->n);
        return sl_report_print(o, err);
    }
    size_t len;
    char *list = sl_report_id_list(ids->v, ids->n, &len);
    if (!list) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the list of ids");
    list[len++] = '\n'; /* in the place of the NUL: written with its length */
    int rc = sl_cmd_write(list, len, err);
    free(list);
    return rc;
}

int sl_cmd_tokenize(int argc, char **argv)
{
    bool markup = false;
    bool json = false;
    const char *file = NULL;
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--file",
         .kind = SL_ARG_STRING,
         .out = &file,
         .group = "Input",
         .metavar = "F",
         .help = "take the text from a file"},
        {.name = "--markup",
         .kind = SL_ARG_FLAG,
         .out = &markup,
         .group = "Input",
         .help = "control spellings become control tokens"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object: {\"ids\": [...]}"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "tokenize",
        .about = "Prints the token ids of a text, comma-separated on one line; TEXT - is stdin.",
        .example = "sluice tokenize k3.pack 'Hello, world'",
        .pos = {"PACK|DIR", "TEXT"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!pos[1] == !file) return sl_args_usage(&cmd, "give either TEXT (- for stdin) or --file F");

    struct sl_err err = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_ids ids = {0};
    char *read = NULL;
    size_t len = pos[1] ? strlen(pos[1]) : 0;
    if (pos[1] && strcmp(pos[1], "-") == 0) file = "-";
    int rc = open_tokenizer(&t, pos[0], &err);
    if (!rc && file) rc = sl_input_text(&read, &len, file, &err);
    const char *text = file ? read : pos[1];
    if (!rc)
        rc = markup ? sl_tokenizer_encode_markup(t, text, len, &ids, &err)
                    : sl_tokenizer_encode_plain(t, text, len, &ids, &err);
    if (!rc) rc = print_ids(&ids, json, &err);
    sl_ids_free(&ids);
    free(read);
    sl_tokenizer_close(t);
    return rc ? sl_cmd_fail(&err) : 0;
}

/* The raw bytes; as JSON only text can be said, so ill-formed bytes become U+FFFD there. */
static int print_text(const char *bytes, size_t len, bool json, struct sl_err *err)
{
    if (!json) {
        int rc = sl_cmd_write(bytes, len, err);
        /* A prompt should not stick to the text; files and pipes get the bytes alone. */
        if (!rc && isatty(STDOUT_FILENO)) rc = sl_cmd_write("\n", 1, err);
        return rc;
    }
    struct sl_utf8_stream u = {0};
    char *text = malloc(SL_UTF8_ROOM(len) + SL_UTF8_ROOM(0));
    if (!text) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the text");
    size_t n = sl_utf8_feed(&u, bytes, len, text);
    n += sl_utf8_finish(&u, text + n);
    cJSON *o = sl_report_open(1);
    if (o) sl_report_text(o, "text", text, n);
    free(text);
    return sl_report_print(o, err);
}

int sl_cmd_detokenize(int argc, char **argv)
{
    bool json = false;
    const char *list = NULL;
    const char *file = NULL;
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--ids",
         .kind = SL_ARG_STRING,
         .out = &list,
         .group = "Input",
         .metavar = "1,2,3",
         .help = "token ids, or {\"ids\": [...]}; - reads either from stdin"},
        {.name = "--ids-file",
         .kind = SL_ARG_STRING,
         .out = &file,
         .group = "Input",
         .metavar = "F",
         .help = "token ids from a file: *.u16, *.u32, or text"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object: {\"text\": ...}"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "detokenize",
        .about = "Prints the bytes of token ids; control tokens print as their names.",
        .example = "sluice detokenize k3.pack --ids 1,2,3",
        .pos = {"PACK|DIR"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!list == !file) return sl_args_usage(&cmd, "give either --ids 1,2,3 or --ids-file F");
    if (list && strcmp(list, "-") == 0) {
        file = "-";
        list = NULL;
    }

    struct sl_err err = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_ids ids = {0};
    char *bytes = NULL;
    size_t len = 0;
    int rc = open_tokenizer(&t, pos[0], &err);
    int n_vocab = rc ? 0 : sl_tokenizer_n_vocab(t);
    if (!rc && list) rc = sl_input_ids(&ids, list, strlen(list), n_vocab, "--ids", SL_E_ARG, &err);
    if (!rc && file) rc = sl_input_ids_file(&ids, file, n_vocab, &err);
    if (!rc) rc = sl_tokenizer_decode(t, ids.v, ids.n, &bytes, &len, &err);
    if (!rc) rc = print_text(bytes, len, json, &err);
    free(bytes);
    sl_ids_free(&ids);
    sl_tokenizer_close(t);
    return rc ? sl_cmd_fail(&err) : 0;
}
