// Whole jobs over Gloo's point-to-point API: what arrives, and how each kind of trouble is named.
#ifdef GENIE_WITH_GLOO

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "transport_checks.h"

namespace genie::test {
namespace {

const RunJob kRunGloo = [](std::vector<ProgramBuilder> builders, const std::vector<std::string>& paths,
                           const LocalOptions& options) {
    use_transport(builders, "gloo", builders[0].settings);
    return run_job(builders, paths, options);
};

TEST_CASE("ring all-reduce over Gloo, with and without verification and window") {
    carries_rings(kRunGloo, 3, {0, 4097, 1'000'001});
}

TEST_CASE("both ends of Gloo record every message under one name") {
    records_both_ends(kRunGloo, "genie-gloo");
}

TEST_CASE("several ranks, all to all, over Gloo") { all_ok(kRunGloo(all_to_all_job(5), {}, {})); }

TEST_CASE("over Gloo sizes that differ are an error by name") { refuses_other_sizes(kRunGloo, 100'002); }

TEST_CASE("a message of a call that this rank has not is refused over Gloo with its iteration") {
    refuses_unknown_calls(kRunGloo, true);
}

TEST_CASE("over Gloo a payload that is not the pattern fails verification") {
    refuses_other_payload(kRunGloo);
}

TEST_CASE("over Gloo a rank with another token is refused") { refuses_other_tokens(kRunGloo, 2); }

TEST_CASE("a pair of Gloo that breaks ends the run with the name of the peer") {
    const LocalResult failed = notices_a_break(kRunGloo, 20'000'000);
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.code == Code::kPeerClosed);
    CHECK(failed.failure.text.find("over gloo failed: ") != std::string::npos);
}

TEST_CASE("ranks in the middle of traffic over Gloo stop at once when they are told to") {
    stops_at_once(kRunGloo);
}

TEST_CASE("settings are refused over Gloo, which has none") { refuses_unknown_settings(kRunGloo, ""); }

}  // namespace
}  // namespace genie::test

#endif
