//! The lines that the YCSB client, its launcher and its `basic` binding print about themselves.
//!
//! Lines are recognized one by one and without state, because the client's threads may print into
//! each other's blocks.

/// Starts of messages, complete up to the first variable part.
const STARTS: [&[u8]; 18] = [
    b"Command line:",
    b"YCSB Client ",
    b"Unable to retrieve client version.",
    b"Loading workload...",
    b" (might take a few minutes for large data sets)",
    b"Starting test.",
    b"DBWrapper: ",
    b"Warning: the threadcount is bigger than recordcount",
    b"Maximum execution time specified as: ",
    b"Could not wait until max specified time, TerminatorThread interrupted.",
    b"Maximum time elapsed. Requesting stop for the workload.",
    b"Stop requested for workload. Now Joining!",
    b"Still waiting for thread ",
    b"Raw data measurement: will output to ",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up _JAVA_OPTIONS:",
    b"[WARN] ",
    b"[INFO] ",
];

/// Whether this is a line that the client prints about itself. `line` has no line end.
pub(super) fn is_client_line(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
        || is_banner(line)
        || is_property(line)
        || is_measurement(line)
        || is_raw_header(line)
        || is_raw_measurement(line)
        || STARTS.iter().any(|start| line.starts_with(start))
        || is_launch(line)
        || is_status(line)
}

/// `***************** properties *****************`, and the row of stars that closes the block.
fn is_banner(line: &[u8]) -> bool {
    let stars = line.iter().take_while(|&&b| b == b'*').count();
    let rest = &line[stars..];
    stars >= 10 && (rest.is_empty() || rest == b" properties *****************")
}

/// `"recordcount"="2000"`.
fn is_property(line: &[u8]) -> bool {
    line.len() >= 5
        && line[0] == b'"'
        && line[line.len() - 1] == b'"'
        && find(line, b"\"=\"").is_some()
}

/// `[READ], Operations, 1516`: three parts at least.
fn is_measurement(line: &[u8]) -> bool {
    let Some(close) = find(line, b"], ") else { return false };
    line[0] == b'[' && close > 1 && find(&line[close + 3..], b", ").is_some()
}

/// `READ latency raw data: op, timestamp(ms), latency(us)`: the one line of the client that starts
/// as an operation does.
pub(super) fn is_raw_header(line: &[u8]) -> bool {
    let (name, rest) = raw_name(line);
    name > 0 && rest == b" latency raw data: op, timestamp(ms), latency(us)"
}

/// Length of the operation's name at the start of a raw measurement, and the rest of the line.
fn raw_name(line: &[u8]) -> (usize, &[u8]) {
    let name = line.iter().take_while(|b| b.is_ascii_uppercase() || b"-_".contains(b)).count();
    (name, &line[name..])
}

/// `READ,1700000000000,12`: one operation's measurement.
fn is_raw_measurement(line: &[u8]) -> bool {
    let (name, rest) = raw_name(line);
    if name == 0 {
        return false;
    }
    let mut parts = rest.split(|&b| b == b',');
    let digits = |part: Option<&[u8]>| {
        part.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit))
    };
    parts.next().is_some_and(<[u8]>::is_empty)
        && digits(parts.next())
        && digits(parts.next())
        && parts.next().is_none()
}

/// The java command that the launcher script prints.
fn is_launch(line: &[u8]) -> bool {
    let java = find(line, b"java ").is_some() || find(line, b"java\" ").is_some();
    let classes = find(line, b" -cp ").is_some() || find(line, b" -classpath ").is_some();
    java && classes && find(line, b" site.ycsb.Client ").is_some()
}

/// `2026-01-31 12:00:00:000 10 sec: 123 operations; ...`, perhaps after a label.
fn is_status(line: &[u8]) -> bool {
    const STAMP: &[u8] = b"dddd-dd-dd dd:dd:dd:ddd ";
    let fits = |window: &[u8]| {
        let mut pairs = window.iter().zip(STAMP);
        pairs.all(|(&b, &p)| if p == b'd' { b.is_ascii_digit() } else { b == p })
    };
    let mut at = 0;
    while let Some(off) = line[at..].windows(STAMP.len()).position(fits) {
        at += off + STAMP.len();
        let after_seconds = skip_digits(&line[at..]).and_then(|rest| rest.strip_prefix(b" sec: "));
        let after_count = after_seconds.and_then(skip_digits);
        if after_count.is_some_and(|rest| rest.starts_with(b" operations; ")) {
            return true;
        }
    }
    false
}

/// The rest after one or more digits.
fn skip_digits(bytes: &[u8]) -> Option<&[u8]> {
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    (digits > 0).then(|| &bytes[digits..])
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_own_lines_are_known() {
        for line in [
            "",
            "***************** properties *****************",
            "**********************************************",
            "\"recordcount\"=\"2000\"",
            "\"label\"=\"\"",
            "[OVERALL], RunTime(ms), 142",
            "[OVERALL], Throughput(ops/sec), 14084.507042253521",
            "[TOTAL_GC_TIME_%_G1_Young_Generation], Time(%), 0.0",
            "[READ], Return=OK, 1516",
            "[READ], 0, 1516",
            "[READS], Uniques, 12",
            "Command line: -load -db site.ycsb.BasicDB -P workloads/workloada",
            "YCSB Client 0.17.0",
            "Loading workload...",
            "Starting test.",
            " (might take a few minutes for large data sets)",
            "DBWrapper: report latency for each error is false and specific error codes to track for latency are: []",
            "Warning: the threadcount is bigger than recordcount, the threadcount will be recordcount!",
            "Maximum execution time specified as: 10 secs",
            "Still waiting for thread Thread-2 to complete. Workload status: true",
            "2026-01-31 12:00:00:000 0 sec: 0 operations; est completion in 0 second ",
            "my 1 sec: label2026-01-31 12:00:00:000 10 sec: 123 operations; 12.3 current ops/sec; [READ: Count=1]",
            "READ latency raw data: op, timestamp(ms), latency(us)",
            "READ,1700000000000,12",
            "READ-FAILED,1700000000000,12",
            "/usr/bin/java  -classpath /y/conf:/y/lib/core-0.17.0.jar site.ycsb.Client -load -db site.ycsb.BasicDB -s",
        ] {
            assert!(is_client_line(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn other_lines_are_not() {
        for line in [
            "x",
            "*****",
            "********** other",
            "\"a\"",
            "\"a\"=b",
            "[READ]",
            "[], a, b",
            "[READ], x",
            "READ,1,",
            "READ,1,2,3",
            ",1,2",
            "2026-01-31 12:00:00:000 10 sec: operations; ",
            "2026-01-31 12:00:00 10 sec: 1 operations; ",
            "REPLACE usertable user1 [ field0=a ]",
            "java.lang.NullPointerException",
            "java -cp x site.ycsb.Other y",
            "\"",
            "\"=\"",
        ] {
            assert!(!is_client_line(line.as_bytes()), "{line}");
        }
    }
}
