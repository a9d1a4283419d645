// A rank over one transport, from its opening to its end. `RankThread` drives it phase by phase and knows no
// transport; which one it is was chosen once, by name, in transports.cpp.
//
// Beside what `Rank` asks of a transport (rank.h) and the driver (driver.h), it wants of one:
//
//     explicit Transport(const RankContext&)   may throw Failure; so may the next two, which may block
//     Opened open()                            ready for its peers to reach it
//     connect_all(endpoints, stopped)          reaches them all
//     break_connection(connection)             for tests: as if the network had cut it
//     tend()                                   may be missing: what peers still want after the rank's end
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "driver.h"
#include "events.h"
#include "pace.h"
#include "program.h"
#include "rank.h"
#include "sockets.h"

namespace genie {

// What a rank runs with; all of it outlives the runner.
struct RankContext {
    const Program& program;
    EventFile& events;
    const Token& token;  // the run's
    int stop_fd;         // an eventfd: readable once the rank shall stop
    Log log;
    PaceFile* pace = nullptr;
};

// How peers reach a rank: the port it listens on, if its transport has ports, and its card, bytes that only
// its transport understands (at most kMostCardBytes). Both travel on the run's control connections, and with
// them what the run's record shall say of the rank's device and of what was settled with it: an object of
// JSON, or nothing.
struct Opened {
    std::uint16_t port = 0;
    std::vector<std::uint8_t> card;
    std::string used;
};

class Runner {
  public:
    Runner() = default;
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;
    virtual ~Runner() = default;

    // All throw Failure. `stopped` is asked whenever the stop_fd is readable.
    virtual Opened open() = 0;
    virtual void connect(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped) = 0;
    virtual void break_connection(std::uint32_t connection) = 0;
    // From the start to the end; how it went. `stopped` gives a reason once the rank shall stop.
    virtual FailureReport run(const std::function<const std::string*()>& stopped) = 0;
    // After the end, now and then, as long as it is there: what peers still want of this side. False: nothing
    // ever.
    virtual bool tend() = 0;
};

template <class Transport>
class RunnerOf final : public Runner {
  public:
    explicit RunnerOf(const RankContext& context)
        : spin_{static_cast<std::int64_t>(context.program.header.spin_ns)},
          transport_(context),
          rank_(context.program, context.events, clock_, transport_, context.pace) {}

    Opened open() override { return transport_.open(); }
    void connect(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped) override {
        transport_.connect_all(endpoints, stopped);
    }
    void break_connection(std::uint32_t connection) override { transport_.break_connection(connection); }
    FailureReport run(const std::function<const std::string*()>& stopped) override {
        rank_.begin(monotonic_now());
        drive(rank_, transport_, spin_, stopped);
        return rank_.failure();
    }
    bool tend() override {
        if constexpr (requires { transport_.tend(); }) {
            transport_.tend();
            return true;
        }
        return false;
    }

  private:
    const Nanos spin_;
    MonotonicClock clock_;
    Transport transport_;
    Rank<MonotonicClock, Transport> rank_;
};

}  // namespace genie
