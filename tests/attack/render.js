// As promptfoo renders: every text of the messages, or (PROMPTFOO_DISABLE_JSON_AUTOESCAPE) the
// messages as one text. render.js ENGINE MESSAGES object|text
const env = require(process.argv[2]).configure({autoescape: false, throwOnUndefined: false});
env.addGlobal('env', process.env);
const vars = {input: 'x'};
const render = (o) => typeof o === 'string' ? env.renderString(o, vars)
  : Array.isArray(o) ? o.map(render)
  : Object.fromEntries(Object.entries(o).map(([k, v]) => [k, render(v)]));
const returned = JSON.parse(process.argv[3]);
const output = process.argv[4] === 'text'
  ? JSON.parse(env.renderString(JSON.stringify(returned), vars)) : render(returned);
console.log(JSON.stringify(output));
