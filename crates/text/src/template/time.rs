//! `strftime_now`, in UTC: the date in a prompt needs no time zone.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment in the parts that formats ask for.
struct Moment {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn new(time: SystemTime) -> Moment {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        };
        let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        Moment {
            year,
            month,
            day,
            day_of_year: days - days_before_year(year) + 1,
            weekday: (days + 4).rem_euclid(7),
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }
}

fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    past * 365 + leaps - 719_162
}

/// The date of a day counted from 1970-01-01. Years are taken to begin in
/// March, so that the leap day is the last of its year and eras of 400 years
/// are alike.
fn civil(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097;
    let shifted = days + 719_468;
    let of_era = shifted.rem_euclid(ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = shifted.div_euclid(ERA) * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

/// Formats a time by the directives of C's strftime; unknown ones stay as they are.
pub(crate) fn format(time: SystemTime, format: &str) -> String {
    let now = Moment::new(time);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let Some(directive) = directive else {
            out.push_str(if padded { "%" } else { "%-" });
            break;
        };
        now.write(directive, padded, &mut out);
    }
    out
}

impl Moment {
    fn write(&self, directive: char, padded: bool, out: &mut String) {
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            // Writing to a string does not fail.
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            'Y' => number(self.year, 4),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'j' => number(self.day_of_year, 3),
            'H' => number(self.hour, 2),
            'I' => number((self.hour + 11) % 12 + 1, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'u' => number((self.weekday + 6) % 7 + 1, 1),
            'w' => number(self.weekday, 1),
            'e' => {
                let _ = write!(out, "{:1$}", self.day, if padded { 2 } else { 0 });
            }
            'B' => out.push_str(MONTHS[self.month as usize - 1]),
            'b' | 'h' => out.push_str(&MONTHS[self.month as usize - 1][..3]),
            'A' => out.push_str(DAYS[self.weekday as usize]),
            'a' => out.push_str(&DAYS[self.weekday as usize][..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'F' => self.write_all(['Y', '-', 'm', '-', 'd'], out),
            'T' => self.write_all(['H', ':', 'M', ':', 'S'], out),
            'D' => self.write_all(['m', '/', 'd', '/', 'y'], out),
            '%' => out.push('%'),
            other => {
                out.push_str(if padded { "%" } else { "%-" });
                out.push(other);
            }
        }
    }

    fn write_all(&self, parts: [char; 5], out: &mut String) {
        for part in parts {
            if part.is_alphabetic() {
                self.write(part, true, out);
            } else {
                out.push(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn formats_as_python_does() {
        let everything = "%d %b %Y|%-d %B %y|%A %a %j %u %w|%H:%M:%S %I %p|%F %T %D|%e|%q%%";
        // python3 -c "…datetime.fromtimestamp(t, timezone.utc).strftime(…)"
        for (seconds, text) in [
            (
                0,
                "01 Jan 1970|1 January 70|Thursday Thu 001 4 4|00:00:00 12 AM|1970-01-01 00:00:00 01/01/70| 1|%q%",
            ),
            (
                1_709_210_096,
                "29 Feb 2024|29 February 24|Thursday Thu 060 4 4|12:34:56 12 PM|2024-02-29 12:34:56 02/29/24|29|%q%",
            ),
            (
                4_107_542_399,
                "28 Feb 2100|28 February 00|Sunday Sun 059 7 0|23:59:59 11 PM|2100-02-28 23:59:59 02/28/00|28|%q%",
            ),
        ] {
            assert_eq!(format(UNIX_EPOCH + Duration::from_secs(seconds), everything), text);
        }
        assert_eq!(format(UNIX_EPOCH, "%"), "%");
        assert_eq!(format(UNIX_EPOCH, "%-"), "%-");
        assert_eq!(format(UNIX_EPOCH - Duration::from_secs(1), "%F %T"), "1969-12-31 23:59:59");
    }
}
