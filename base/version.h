/* Version of the tool, stamped into packs and reports. Commit, flags and ISA come from the build. */
#ifndef SL_BASE_VERSION_H
#define SL_BASE_VERSION_H

#define SL_VERSION "0.1.0"

/* From the build (generated build/build_info.c): "abc1234" or "unknown"; compiler and flags. */
extern const char sl_build_commit[];
extern const char sl_build_flags[];

#endif
