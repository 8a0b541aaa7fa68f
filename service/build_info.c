/* SPDX-License-Identifier: Apache-2.0 */
#include "service/build_info.h"

#include "kernels/cpu/cpu_backend.h"
#include "service/commit.h"

#include <grpc/grpc.h>
#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdio.h>
#include <yaml.h>

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void print_cpu_paths(void)
{
    const char *best = "reference";
    fputs("CPU paths  reference", stdout);
    for (int isa = MR_CPU_ISA_PORTABLE; isa < MR_CPU_ISA_COUNT; isa++) {
        bool runs = false;
        const char *name = mr_cpu_path_name((mr_cpu_isa)isa, &runs);
        if (name != NULL) {
            printf(", %s", name);
            best = runs ? name : best;
        }
    }
    printf("; this machine runs %s\n", best);
}

void mr_build_info_print(void)
{
    printf("millrace %s%s%s\n", MR_VERSION, MR_COMMIT[0] == '\0' ? "" : " commit ", MR_COMMIT);
    puts("compiler   " COMPILER);
    print_cpu_paths();
    printf("libraries  gRPC core %s, protobuf-c %s, PCRE2 " MR_PCRE2_VERSION
           ", jansson %s, libyaml %s\n",
           grpc_version_string(), protobuf_c_version(), JANSSON_VERSION, yaml_get_version_string());
}
