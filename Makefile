# sluice: build, test, install. Run `make help` for the list of targets.
#
# One object tree a variant: build/ (default), build/asan, build/tsan, build/aarch64. What the machine
# has is found by scripts/detect.sh and kept in $(O)/config.mk. Nothing is built for "this CPU only":
# ISA variants are separate files, compiled with their own flags and chosen at run time.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

PREFIX  ?= /usr/local
DESTDIR ?=
FILTER  ?=
V       ?= 0
# CUDA=1 builds kernels/cuda into the library. Machine code for each of CUDA_ARCHS, and portable code of
# the last one for GPUs to come; name only yours to build faster: CUDA_ARCHS=90.
CUDA       ?=
CUDA_ARCHS ?= 75 80 86 87 89 90 100 110 120

VARIANT ?=
O := build$(if $(VARIANT),/$(VARIANT))

ifeq ($(origin CC),default)
CC := cc
endif
ifeq ($(VARIANT),aarch64)
CC      := aarch64-linux-gnu-gcc
SYSROOT := build/aarch64-root
endif

# Goals that need no compiler, and goals that may install what is missing.
PLAIN_GOALS   := help clean distclean deps format lint-format lint-includes uninstall
INSTALL_GOALS := demo test
GOALS := $(or $(MAKECMDGOALS),all)

.PHONY: all help demo test bench crosscheck asan tsan lint lint-format lint-includes lint-tidy format \
        cppcheck valgrind install uninstall clean distclean aarch64 test-aarch64 deps tests test-run fuzz FORCE

all:

# Remade when the script, the compiler or the variant changes; make then starts over with the answers.
# (A phony config.mk would be remade too, but not read again.)
ifneq ($(filter-out $(PLAIN_GOALS),$(GOALS)),)
# Which sources ask for optional libraries belongs to the question: an update may add one.
CONFIG_KEY := $(CC)|$(VARIANT)|$(SYSROOT)|$(shell grep -lsE '^\#include <(liburing|numa|microhttpd)\.h>' \
                base/*.c offload/*.c runtime/*.c)
$(shell mkdir -p $(O); printf '%s\n' '$(CONFIG_KEY)' | cmp -s - $(O)/config.key || \
        printf '%s\n' '$(CONFIG_KEY)' >$(O)/config.key)
include $(O)/config.mk
endif

$(O)/config.mk: scripts/detect.sh $(O)/config.key
	@mkdir -p $(@D)
	@CC='$(CC)' SYSROOT='$(SYSROOT)' \
	  INSTALL='$(if $(filter $(INSTALL_GOALS),$(GOALS)),1)' sh scripts/detect.sh $@

# ---------------------------------------------------------------- flags

ifeq ($(CUDA),1)
# Before config.mk is made there is nothing to judge.
ifeq ($(if $(CONFIG_ARCH),$(CONFIG_NVCC),yet),)
$(error CUDA=1, but nvcc was not found: put it on PATH)
endif
CUDA_HOME  := $(patsubst %/bin/nvcc,%,$(CONFIG_NVCC))
CUDA_FLAGS := -DSL_HAVE_CUDA=1
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
endif

WARN     := -Wall -Wextra -Wshadow -Wvla -Werror
ifeq ($(VARIANT),fuzz)
OPT      ?= -O1
endif
OPT      ?= -O2
# No contraction: a fused multiply-add rounds once and would change bits between ISAs.
# No math errno: sqrtf becomes one instruction, its value is the same.
BASE_CFLAGS := -std=gnu11 $(OPT) -g $(WARN) -ffp-contract=off -fno-math-errno -fPIC \
               -fno-semantic-interposition -pthread
BASE_LDFLAGS := -pthread -Wl,--as-needed
ifeq ($(VARIANT),asan)
BASE_CFLAGS  += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
BASE_LDFLAGS += -fsanitize=address,undefined
endif
ifeq ($(VARIANT),tsan)
BASE_CFLAGS  += -fsanitize=thread
BASE_LDFLAGS += -fsanitize=thread
endif
ifeq ($(VARIANT),fuzz)
CC           := clang
BASE_CFLAGS  += -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
BASE_LDFLAGS += -fsanitize=address,undefined
endif
ALL_CPPFLAGS := -I. $(CONFIG_CPPFLAGS) $(CUDA_FLAGS) $(CPPFLAGS)
ALL_CFLAGS   := $(BASE_CFLAGS) $(CFLAGS)
ALL_LDFLAGS  := $(BASE_LDFLAGS) $(CONFIG_LDFLAGS) $(LDFLAGS)
ALL_LIBS     := $(CONFIG_LIBS) $(CUDA_LIBS) -lm

# As in C: no contraction, IEEE division, roots and subnormals.
NVCC_FLAGS := -std=c++17 -O3 -I. -lineinfo -fmad=false -Xcompiler -fPIC,-Wall,-Wno-unknown-pragmas \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))

# The portable C of kernels/ and quant/ is vectorised at -O3 (k3-nano eval without SIMD variants: 8.6 s
# at -O2, 3.3 s at -O3; with AVX2 no difference, nor elsewhere in the tree).
KERNEL_OPT := $(if $(filter -O2,$(OPT)),$(if $(filter asan tsan fuzz,$(VARIANT)),,-O3))
opt_flags = $(if $(filter kernels/% quant/%,$(1)),$(KERNEL_OPT))

# Flags by file-name suffix: one ISA a translation unit.
ISA_avx2       := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_avx512vbmi := $(ISA_avx512) -mavx512vbmi
ISA_neon       :=
ISA_neondot    := -march=armv8.2-a+dotprod
isa_flags = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))

# ---------------------------------------------------------------- sources

LIB_SRC := $(filter-out runtime/main.c,$(wildcard base/*.c kernels/*.c quant/*.c offload/*.c \
             convert/*.c runtime/*.c))
ifeq ($(CONFIG_ARCH),x86_64)
LIB_SRC += $(wildcard kernels/x86/*.c)
endif
ifeq ($(CONFIG_ARCH),aarch64)
LIB_SRC += $(wildcard kernels/arm/*.c)
endif
CUDA_SRC := $(if $(CUDA_FLAGS),$(wildcard kernels/cuda/*.cu))
CUDA_OBJ := $(CUDA_SRC:%.cu=$(O)/obj/%.o)
LIB_OBJ  := $(LIB_SRC:%.c=$(O)/obj/%.o) $(CUDA_OBJ) $(O)/obj/build_info.o $(O)/obj/page.o
CLI_SRC  := $(wildcard runtime/main.c)
CLI      := $(if $(CLI_SRC),$(O)/sluice)

# tests/FOLDER/{test,bench,tool}_*.c are programs, any other .c there is linked into all of them.
# tests/cuda needs the library to have its GPU part.
sources_of  = $(filter-out $(if $(CUDA_FLAGS),,tests/cuda/%),$(wildcard tests/*/$(1).c))
TEST_SRC   := $(call sources_of,test_*)
TOOL_SRC   := $(call sources_of,tool_*)
BENCH_SRC  := $(call sources_of,bench_*)
# Preloaded into programs under test; no sanitizer, which would want to come first.
SHIM_SRC   := $(wildcard tests/*/shim_*.c)
HELPER_SRC := $(filter-out $(TEST_SRC) $(TOOL_SRC) $(BENCH_SRC) $(SHIM_SRC),$(call sources_of,*))
TEST_BIN   := $(TEST_SRC:%.c=$(O)/%)
TOOL_BIN   := $(TOOL_SRC:%.c=$(O)/%)
BENCH_BIN  := $(BENCH_SRC:%.c=$(O)/%)
SHIM_LIB   := $(SHIM_SRC:%.c=$(O)/%.so)
HELPER_OBJ := $(HELPER_SRC:%.c=$(O)/obj/%.o)
HELPER_LIB := $(if $(HELPER_OBJ),$(O)/libtests.a)
ALL_SRC    := $(LIB_SRC) $(CLI_SRC) $(TEST_SRC) $(TOOL_SRC) $(BENCH_SRC) $(HELPER_SRC)

ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-6s %s\n'
endif

# ---------------------------------------------------------------- library and program
# What is linked appears by rename: a test that runs meanwhile never meets half a program.

all: $(O)/libsluice.a $(O)/libsluice.so $(CLI)

# Everything that shapes an object, so that another compiler or flag rebuilds all of them.
STAMP_TEXT := $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(KERNEL_OPT)
$(O)/flags.stamp: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(STAMP_TEXT)' | cmp -s - $@ || printf '%s\n' '$(STAMP_TEXT)' > $@

$(O)/build_info.c: FORCE
	@mkdir -p $(@D)
	@CC='$(CC)' FLAGS='$(ALL_CFLAGS)' sh scripts/build_info.sh $@

$(O)/obj/build_info.o: $(O)/build_info.c $(O)/flags.stamp
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@

# The page of `serve` as an array of bytes (runtime/serve_page.h).
$(O)/page.c: runtime/page/index.html Makefile
	@mkdir -p $(@D)
	@{ echo '#include "runtime/serve_page.h"'; echo 'const unsigned char sl_serve_page[] = {'; \
	  od -An -v -tu1 $< | sed 's/  *\([0-9][0-9]*\)/\1,/g'; \
	  echo '};'; echo 'const size_t sl_serve_page_bytes = sizeof sl_serve_page;'; } >$@.tmp && mv $@.tmp $@

$(O)/obj/page.o: $(O)/page.c $(O)/flags.stamp
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@

$(O)/obj/%.o: %.c $(O)/flags.stamp
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(call opt_flags,$<) $(call isa_flags,$<) -MMD -MP -c $< -o $@

$(CUDA_OBJ): $(O)/obj/%.o: %.cu $(O)/cuda.stamp
	@mkdir -p $(@D)
	$(say) NVCC $<
	$(Q)$(CONFIG_NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(O)/cuda.stamp: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CONFIG_NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || printf '%s\n' '$(CONFIG_NVCC) $(NVCC_FLAGS)' > $@

$(O)/libsluice.a: $(LIB_OBJ)
	$(say) AR $@
	$(Q)rm -f $@.tmp && $(AR) rcs $@.tmp $(LIB_OBJ) && mv $@.tmp $@

# Only sluice_* leaves the shared library.
$(O)/libsluice.so: $(LIB_OBJ) scripts/libsluice.map
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -shared -Wl,-soname,libsluice.so -Wl,--version-script=scripts/libsluice.map \
	  $(LIB_OBJ) -o $@.tmp $(ALL_LDFLAGS) $(ALL_LIBS) && mv $@.tmp $@

$(O)/sluice: $(O)/obj/runtime/main.o $(O)/libsluice.a
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@.tmp $(ALL_LDFLAGS) $(ALL_LIBS) && mv $@.tmp $@

# ---------------------------------------------------------------- tests

$(O)/libtests.a: $(HELPER_OBJ)
	$(Q)rm -f $@.tmp && $(AR) rcs $@.tmp $(HELPER_OBJ) && mv $@.tmp $@

$(TEST_BIN) $(TOOL_BIN) $(BENCH_BIN): $(O)/%: $(O)/obj/%.o $(HELPER_LIB) $(O)/libsluice.a
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) $< $(HELPER_LIB) $(O)/libsluice.a -o $@.tmp $(ALL_LDFLAGS) $(CONFIG_CMOCKA) \
	  $(ALL_LIBS) && mv $@.tmp $@

$(SHIM_LIB): $(O)/%.so: %.c tests/faults/power_cut.h
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) -I. -std=gnu11 -O2 -g $(WARN) -fPIC -shared $< -o $@.tmp -ldl -pthread && mv $@.tmp $@

ifeq ($(CONFIG_CMOCKA),)
tests:
	@if [ -n '$(INSTALLED_ONCE)' ]; then echo 'make: cmocka is still not found' >&2; exit 1; fi
	@$(if $(VARIANT),echo 'make: cmocka not found for this variant' >&2; exit 1,sh scripts/deps.sh)
	@rm -f $(O)/config.mk
	@$(MAKE) --no-print-directory INSTALLED_ONCE=1 tests
else
tests: all $(TEST_BIN) $(TOOL_BIN) $(SHIM_LIB)
endif

test-run: tests
	@BUILD='$(O)' CUDA='$(CUDA)' bash tests/run.sh $(FILTER)

test: test-run

asan:
	@$(MAKE) --no-print-directory VARIANT=asan FILTER='$(FILTER)' test-run

# The tests that share memory between threads; FILTER picks others.
tsan:
	@$(MAKE) --no-print-directory VARIANT=tsan \
	  FILTER='$(or $(FILTER),base/test_pool base/test_progress offload/test_)' test-run

# libFuzzer over every target of tests/fuzz (FILTER picks), TIME seconds each; needs clang.
TIME ?= 60
$(O)/fuzz: $(HELPER_LIB) $(O)/libsluice.a
	$(say) LD $@
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer $(HELPER_LIB) $(O)/libsluice.a -o $@.tmp $(ALL_LDFLAGS) \
	  $(CONFIG_CMOCKA) $(ALL_LIBS) && mv $@.tmp $@

fuzz:
	@command -v clang >/dev/null 2>&1 || { echo 'make: fuzz needs clang' >&2; exit 1; }
	@$(MAKE) --no-print-directory VARIANT=fuzz build/fuzz/fuzz
	@TIME='$(TIME)' bash tests/fuzz/run_fuzz.sh $(FILTER)

bench: all $(BENCH_BIN)
	@for b in $(BENCH_BIN); do echo "== $$b"; $$b || exit 1; done

crosscheck: all $(TOOL_BIN)
	@BUILD='$(O)' bash tests/run.sh --crosscheck $(FILTER)

demo: all
	@if [ -f scripts/demo.sh ]; then bash scripts/demo.sh; \
	 else echo 'make: scripts/demo.sh not found' >&2; exit 1; fi

# ---------------------------------------------------------------- aarch64, cross-built, under qemu

aarch64:
	@sh scripts/aarch64_root.sh build/aarch64-root
	@$(MAKE) --no-print-directory VARIANT=aarch64 all

test-aarch64:
	@sh scripts/aarch64_test.sh '$(MAKE)' '$(FILTER)'

# ---------------------------------------------------------------- form

C_FILES = $(wildcard base/*.[ch] kernels/*.[ch] kernels/*/*.[ch] quant/*.[ch] offload/*.[ch] \
            convert/*.[ch] runtime/*.[ch] tests/*.[ch] tests/*/*.[ch])
CLANG_FORMAT ?= clang-format
CLANG_TIDY   ?= clang-tidy

format:
	$(CLANG_FORMAT) -i $(C_FILES)

lint: lint-format lint-includes lint-tidy

lint-format:
	@$(CLANG_FORMAT) --dry-run -Werror $(C_FILES) && echo 'clang-format: clean'

lint-includes:
	@bash tests/check_includes.sh

# Each file is a target of its own, so that -j works and only changed files are read again.
TIDY_STAMPS := $(ALL_SRC:%.c=$(O)/tidy/%.ok)
lint-tidy: $(TIDY_STAMPS)
	@echo 'clang-tidy: clean'

$(O)/tidy/%.ok: $(O)/obj/%.o .clang-tidy
	@mkdir -p $(@D)
	$(say) TIDY $*.c
	@$(CLANG_TIDY) --quiet $*.c -- $(ALL_CPPFLAGS) -std=gnu11 $(call isa_flags,$*.c) 2>$@.log \
	  || { cat $@.log; exit 1; }
	@touch $@

# Another reader of the sources; what it gets wrong is explained in scripts/cppcheck.txt or beside the code.
CPPCHECK ?= cppcheck
cppcheck:
	@command -v $(CPPCHECK) >/dev/null 2>&1 || { echo 'SKIP cppcheck is not installed'; exit 0; }; \
	$(CPPCHECK) --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --quiet \
	  --suppressions-list=scripts/cppcheck.txt --error-exitcode=1 -I. $(CONFIG_CPPFLAGS) \
	  --template='{file}:{line}: {severity}: {id}: {message}' $(LIB_SRC) $(CLI_SRC) && echo 'cppcheck: clean'

# Memory of a conversion, a run on both I/O paths and a verification, byte by byte.
valgrind: all
	@SLUICE='$(O)/sluice' bash scripts/valgrind.sh

# ---------------------------------------------------------------- the rest

install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/lib' '$(DESTDIR)$(PREFIX)/include'
	install -m 755 $(O)/sluice '$(DESTDIR)$(PREFIX)/bin/sluice'
	install -m 644 $(O)/libsluice.a '$(DESTDIR)$(PREFIX)/lib/libsluice.a'
	install -m 755 $(O)/libsluice.so '$(DESTDIR)$(PREFIX)/lib/libsluice.so'
	install -m 644 runtime/sluice.h '$(DESTDIR)$(PREFIX)/include/sluice.h'
	install -d '$(DESTDIR)$(PREFIX)/share/sluice/boards'
	install -m 644 boards/*.json '$(DESTDIR)$(PREFIX)/share/sluice/boards'

uninstall:
	rm -f '$(DESTDIR)$(PREFIX)/bin/sluice' '$(DESTDIR)$(PREFIX)/lib/libsluice.a' \
	  '$(DESTDIR)$(PREFIX)/lib/libsluice.so' '$(DESTDIR)$(PREFIX)/include/sluice.h'
	rm -rf '$(DESTDIR)$(PREFIX)/share/sluice'

deps:
	@sh scripts/deps.sh
	@rm -f build/config.mk build/*/config.mk

# Objects and programs go, what was downloaded (build/aarch64-root) stays; distclean takes all.
clean:
	@for d in build/*; do case $$d in build/aarch64-root) ;; *) rm -rf "$$d" ;; esac; done

distclean:
	rm -rf build

help:
	@echo 'make               library, shared library, command line tool'
	@echo 'make demo          convert the bundled model, print generated text, memory and speed'
	@echo 'make test          all tests; FILTER=words picks suites, -word leaves out'
	@echo 'make CUDA=1        all of the above with kernels/cuda; CUDA_ARCHS="80 90" picks GPUs'
	@echo 'make asan, tsan    tests under sanitizers (own object trees)'
	@echo 'make fuzz          libFuzzer over every kind of input, TIME=60 seconds each (needs clang)'
	@echo 'make bench         time the building blocks'
	@echo 'make crosscheck    compare with independent implementations, where installed'
	@echo 'make cppcheck, valgrind   a second static reader; memory of short runs, byte by byte'
	@echo 'make lint, format  clang-format, include directions, clang-tidy'
	@echo 'make aarch64, test-aarch64   cross build, and the tests under qemu'
	@echo 'make install, uninstall      PREFIX=/usr/local DESTDIR='
	@echo 'make deps          install the Debian packages needed, or say which'
	@echo 'make clean, distclean'

-include $(ALL_SRC:%.c=$(O)/obj/%.d) $(CUDA_OBJ:.o=.d)
