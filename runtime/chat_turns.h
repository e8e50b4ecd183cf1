/* Ids of generated turns, kept with the text they rendered.
 *
 * A client sends history back as text. Encoded again it may give other ids than the model wrote (a
 * sampled word need not be cut the way the encoder cuts it), and then nothing after it matches the
 * cache. So the ids of each answer are kept under the rendered form of its message (sl_chat_key), and
 * the prompt builder takes them where a message renders to exactly that.
 *
 * Bounded in bytes, least recently used out first. Keys are compared in full, never by hash alone.
 * Thread-safe; a found turn is copied out. */
#ifndef SL_RUNTIME_CHAT_TURNS_H
#define SL_RUNTIME_CHAT_TURNS_H

#include "runtime/chat_format.h"

struct sl_chat_turns;
int sl_chat_turns_open(struct sl_chat_turns **out, size_t max_bytes, struct sl_err *err);
void sl_chat_turns_close(struct sl_chat_turns *t); /* NULL is fine */

/* Keeps ids[n]: everything after the generation prompt up to and with the end-of-message token (generated
 * ids without a stop token + sl_chat_parser_closing()). The message that they parse to is the key. A turn
 * of the same key is replaced; one that is larger than the whole store is not kept. */
int sl_chat_turns_put(struct sl_chat_turns *t, const struct sl_chat_format *f, bool thinking,
                      const int32_t *ids, size_t n, struct sl_err *err);
/* Keeps every turn found in the ids of a session: what stands behind an assistant's opening, the last one
 * closed if it is not. For sessions that come from a file. */
int sl_chat_turns_learn(struct sl_chat_turns *t, const struct sl_chat_format *f, bool thinking,
                        const int32_t *ids, size_t n, struct sl_err *err);
/* sl_chat_render() with the turns of t (may be NULL). */
int sl_chat_turns_render(struct sl_chat_turns *t, const struct sl_chat_format *f,
                         const struct sl_chat *c, struct sl_chat_prompt *out, struct sl_err *err);

/* The store as one file, atomically, with version and checksum. Load adds to what is there; it refuses
 * (SL_E_SOURCE) a file that is damaged, and turns whose ids this vocabulary does not know. Keys are made
 * anew from the ids, so that no file can put ids under a text that they do not spell. */
int sl_chat_turns_save(struct sl_chat_turns *t, const char *path, struct sl_err *err);
int sl_chat_turns_load(struct sl_chat_turns *t, const struct sl_chat_format *f, const char *path,
                       struct sl_err *err);
/* Turns and bytes held now. */
void sl_chat_turns_count(struct sl_chat_turns *t, size_t *n, size_t *bytes);

#endif
