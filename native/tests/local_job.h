// Runs whole jobs in this process over loopback, for tests and benchmarks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "builder.h"
#include "local.h"

namespace genie::test {

inline std::vector<LocalResult> run_job(const std::vector<ProgramBuilder>& builders,
                                        std::vector<std::string> event_paths = {},
                                        const LocalOptions& options = {}) {
    std::vector<Program> programs;
    for (const ProgramBuilder& builder : builders) programs.push_back(builder.program());
    event_paths.resize(programs.size());
    Token token;
    token.fill(9);
    return run_local(std::move(programs), event_paths, token, options);
}

}  // namespace genie::test
