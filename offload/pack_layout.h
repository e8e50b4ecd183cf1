/* Pack layout on disk (design section 2): what reader and writer share, and nothing else.
 *
 *   PACK/pack.json  trunk.bin  vision.bin  experts/L###.bank  tokenizer/...  calib/...
 *
 * A bank: 4 KiB header, index in expert id order at index_offset (zero padded to 4 KiB), records in id
 * order, each a multiple of 4 KiB, zero padded. Inside a record the base planes of gate, up, down come
 * first, refinement planes start on a 4 KiB boundary. Little-endian throughout; a bank knows no layer
 * number, so several layers may share one. */
#ifndef SL_OFFLOAD_PACK_LAYOUT_H
#define SL_OFFLOAD_PACK_LAYOUT_H

#include <stdint.h>
#include "base/err.h"
#include "kernels/format.h"

#define SL_PACK_VERSION 1
#define SL_BANK_MAGIC   "SLBANK1" /* 8 bytes with its NUL */
#define SL_BANK_VERSION 1
#define SL_PAGE         4096u
#define SL_PIECE_BYTES  (32u << 20) /* trunk reads and writes are at most this long */
#define SL_ABSENT       UINT32_MAX  /* offset of a plane that the format does not have */

enum { SL_GATE = 0, SL_UP = 1, SL_DOWN = 2, SL_N_MATS = 3 };

struct sl_bank_header {
    char magic[8];
    uint32_t version;
    uint32_t n_experts;
    uint64_t index_offset; /* 4096 */
    uint32_t entry_bytes;  /* sizeof(struct sl_bank_entry) */
    uint32_t index_crc32;  /* of n_experts * entry_bytes bytes at index_offset */
    uint64_t file_bytes;
    uint32_t reserved[5];  /* zero */
    uint32_t header_crc32; /* of the 60 bytes before it */
    /* zero to 4096 */
};
_Static_assert(sizeof(struct sl_bank_header) == 64, "on disk");

/* Byte offsets from the start of the record; SL_ABSENT where there is none. */
struct sl_plane_offsets {
    uint32_t codes, scales, row_scales, table;
};

struct sl_bank_entry {
    uint64_t offset;  /* of the record in the file, multiple of 4096 */
    uint32_t bytes;   /* padded record, multiple of 4096 */
    uint32_t crc32;   /* of the padded record */
    uint8_t fmt[3];   /* enum sl_fmt of gate, up, down */
    uint8_t n_planes; /* 1, or 2 with a refinement plane set */
    uint32_t
        base_bytes; /* bytes that a base-only read needs, multiple of 4096; = bytes when n_planes is 1 */
    struct sl_plane_offsets planes[SL_N_MATS][2]; /* [matrix][0 base, 1 refinement] */
    uint32_t base_crc32; /* of the first base_bytes when n_planes is 2, else 0 */
    uint32_t reserved;
};
_Static_assert(sizeof(struct sl_bank_entry) == 128, "on disk");

/* Lays out one record: gate and up are [width][latent], down is [latent][width]. Fills fmt, planes,
 * n_planes, base_bytes and bytes of e (offset and crc32 are the writer's). Order: codes, scales,
 * row_scales, table of gate, then of up, then of down, each on SL_PLANE_ALIGN. SL_E_ARG when a format does not suit
 * the shape. */
int sl_record_layout(struct sl_bank_entry *e, const enum sl_fmt fmt[SL_N_MATS], int latent,
                     int width, struct sl_err *err);

/* The checksums of e for its padded record: one whole, and one of the base planes where there are two
 * plane sets, so that a read of either part alone can be checked. */
void sl_record_checksums(struct sl_bank_entry *e, const uint8_t *record);
/* crc32 that bytes [base_bytes, bytes) must have; n_planes is 2. */
uint32_t sl_record_fine_crc32(const struct sl_bank_entry *e);

/* Offset of the first record: header + index, padded to 4 KiB. */
uint64_t sl_bank_first_record(uint32_t n_experts);

#endif
