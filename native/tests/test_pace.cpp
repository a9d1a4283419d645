// The pace of compute: when a change takes effect, what is recorded of it, and which files are none of ours.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "builder.h"
#include "pace.h"
#include "rank.h"

namespace genie::test {
namespace {

class Folder {
  public:
    Folder() {
        char name[] = "/tmp/genie-pace-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path_ = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }
    std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

struct HandClock {
    Nanos time;
    Nanos now() const { return time; }
};

struct NoTransport {
    bool poll(Sink&, Nanos) { return false; }
    bool pending() const { return false; }
    bool busy(std::uint32_t) const { return false; }
    bool send(std::uint32_t, const Frame&, SendTimes&) { return true; }
    void send_credit(std::uint32_t, std::uint64_t) {}
    bool drained() const { return true; }
    std::uint64_t moved() const { return 0; }
};

// A rank that computes `durations` one after another, by a clock that we move.
class Computing {
  public:
    Computing(const std::vector<std::int64_t>& durations, PaceFile* pace, std::uint64_t scale_ppm = 1'000'000)
        : program_(make(durations, scale_ppm)),
          events_("", 0, 1, program_.header.event_capacity),
          rank(program_, events_, clock, transport_, pace) {
        rank.begin(0_ns);
        due = rank.advance(0_ns).deadline;
    }

    // Goes on to when the running operator ends; returns how long that operator was recorded to take.
    std::int64_t finish_one() {
        const std::uint64_t had = events_.committed();
        clock.time = due;
        due = rank.advance(due).deadline;
        REQUIRE(events_.committed() > had);
        const Event& event = events_.records()[had];
        REQUIRE(event.type == EventType::kOperator);
        return event.t2_ns - event.t1_ns;
    }

  private:
    static Program make(const std::vector<std::int64_t>& durations, std::uint64_t scale_ppm) {
        ProgramBuilder builder(0, 1);
        builder.header.compute_scale_ppm = scale_ppm;
        std::vector<std::uint32_t> last;
        for (const std::int64_t duration : durations) last = {builder.compute(duration, last)};
        return builder.program();
    }

    Program program_;
    EventFile events_;
    NoTransport transport_;

  public:
    HandClock clock;
    Rank<HandClock, NoTransport> rank;
    Nanos due;
};

TEST_CASE("a new pace holds from the next operator on, and records say what was waited") {
    const Folder folder;
    PaceFile pace = PaceFile::open_or_make(folder.file("pace"));
    Computing job({1000, 1000, 1000, 0, 1000, 1001}, &pace);
    pace.set(2000);
    CHECK(job.finish_one() == 1000);  // was under way
    CHECK(job.finish_one() == 2000);  // started before the next line, not after
    pace.set(500);
    CHECK(job.finish_one() == 2000);
    pace.set(kPlannedMilli);
    // The operator without a duration ended at once, between these two.
    CHECK(job.due.value == 5500);
    CHECK(pace.page().stretched_ops == 3);
    CHECK(pace.page().added_ns == 1000 + 1000 - 500);
    CHECK(pace.page().changes == 3);
}

TEST_CASE("pace multiplies the dilated duration; at 1000 nothing is counted") {
    const Folder folder;
    PaceFile pace = PaceFile::open_or_make(folder.file("pace"));
    Computing planned({1000, 1000}, &pace, 3'000'000);
    CHECK(planned.finish_one() == 3000);
    CHECK(pace.page().stretched_ops == 0);
    pace.set(1500);
    Computing slow({1000, 1000}, &pace, 3'000'000);
    CHECK(slow.finish_one() == 4500);
    Computing without({1000, 1000}, nullptr, 3'000'000);
    CHECK(without.finish_one() == 3000);
}

TEST_CASE("the longest duration at the slowest pace saturates") {
    const Folder folder;
    PaceFile pace = PaceFile::open_or_make(folder.file("pace"));
    pace.set(kMostMilli);
    Computing job({std::int64_t{1} << 60}, &pace);
    CHECK(job.due == Nanos::never());
}

TEST_CASE("a damaged page ends the rank, with the reason") {
    const Folder folder;
    const std::string path = folder.file("pace");
    PaceFile pace = PaceFile::open_or_make(path);
    Computing job({1000, 1000}, &pace);
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{2000}, ~std::uint64_t{99} << 32 | 99}) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(16).write(reinterpret_cast<const char*>(&value), sizeof value).flush();
        CAPTURE(value);
        CHECK(!pace.stretch_milli().has_value());
    }
    job.finish_one();
    CHECK(!job.rank.running());
    CHECK(job.rank.failure().code == Code::kInternal);
    CHECK(job.rank.failure().text.find("pace file is damaged") != std::string::npos);
}

TEST_CASE("a pace file is made once, with its folders, and shared between processes") {
    const Folder folder;
    const std::string path = folder.file("run/h0/pace");
    PaceFile pace = PaceFile::open_or_make(path);
    CHECK(pace.stretch_milli() == kPlannedMilli);
    const pid_t child = ::fork();
    if (child == 0) {
        PaceFile::open(path).set(2500);
        ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(pace.stretch_milli() == 2500U);
    CHECK(PaceFile::open_or_make(path).stretch_milli() == 2500U);
}

TEST_CASE("a file that its maker did not live to write is made anew") {
    const Folder folder;
    std::ofstream(folder.file("pace")).flush();
    CHECK(PaceFile::open(folder.file("pace")).stretch_milli() == kPlannedMilli);
}

TEST_CASE("what is no pace file is left as it is, with the reason") {
    const Folder folder;
    CHECK_THROWS_WITH_AS(PaceFile::open(folder.file("none")), doctest::Contains("No such file"), Failure);
    std::ofstream(folder.file("short")) << "hello";
    CHECK_THROWS_WITH_AS(PaceFile::open(folder.file("short")), doctest::Contains("found 5"), Failure);
    std::ofstream(folder.file("other")) << std::string(kPaceBytes, 'x');
    CHECK_THROWS_WITH_AS(PaceFile::open(folder.file("other")), doctest::Contains("version"), Failure);
    std::filesystem::create_symlink(folder.file("other"), folder.file("link"));
    CHECK_THROWS_AS(PaceFile::open_or_make(folder.file("link")), Failure);
    std::filesystem::create_directory(folder.file("folder"));
    CHECK_THROWS_AS(PaceFile::open_or_make(folder.file("folder")), Failure);
    CHECK(std::filesystem::file_size(folder.file("short")) == 5);
}

}  // namespace
}  // namespace genie::test
