// What a warden is told when it is armed: commands, time limit, window. Text, a record a line, fields
// separated by tabs, "\t", "\n" and "\\" escaped; the window's record is the last, so a text that was cut
// short is no spec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clock.h"

namespace genie::warden {

using Argv = std::vector<std::string>;

constexpr std::size_t kMostSpecBytes = 1 << 20;

enum class WindowKind { kWhole, kTimed, kPeriodic, kTold };

struct Window {
    WindowKind kind = WindowKind::kWhole;
    Nanos at = 0;      // from the origin
    Nanos period = 0;  // periodic only
    Nanos open = 0;    // periodic only: how long of each period
    Nanos length = 0;  // 0: to the end
};

struct Spec {
    std::string run;
    std::string fault;
    Nanos ttl = 0;
    std::vector<Argv> apply;  // "do"
    std::vector<Argv> later;  // after do, by `later_after`, if the window is still open then
    Nanos later_after = 0;
    std::vector<Argv> undo;
    std::vector<Argv> check;
    Window window;
};

// Throws Failure naming the line.
Spec parse_spec(std::string_view text);

struct Edges {
    std::int64_t index = 0;
    Nanos opens = 0;
    Nanos closes = 0;  // 0: never
};

// The first window, of number `from` or later, that is not over at `now`; nothing if all are.
std::optional<Edges> next_window(const Window& window, Nanos origin, std::int64_t from, Nanos now);

// How many windows there are; 0 if they do not end.
std::int64_t window_count(const Window& window);

}  // namespace genie::warden
