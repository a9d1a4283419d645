// A whole job in this process: every rank a thread, over loopback TCP. For tests, benchmarks and
// `genie._native`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "failure.h"
#include "program.h"
#include "rank_thread.h"

namespace genie {

struct LocalResult {
    std::uint32_t rank = 0;
    Ending ending = Ending::kOk;
    FailureReport failure;
};

struct LocalOptions {
    Log log;
    PaceFile* pace = nullptr;
    // For tests: a token other than the job's, a connection to reset at the start.
    std::map<std::uint32_t, Token> false_tokens;
    std::map<std::uint32_t, std::uint32_t> break_connection;
    Nanos abort_after = Nanos::never();
};

// Runs `programs` (one a rank, all of one job) to their ends; an empty event path keeps no file. The first
// failure stops the others. Throws Failure if a thread cannot be made.
std::vector<LocalResult> run_local(std::vector<Program> programs, const std::vector<std::string>& event_paths,
                                   const Token& token, const LocalOptions& options = {});

}  // namespace genie
